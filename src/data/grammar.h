// The built-in corpus: a probabilistic grammar that writes endless little stories for children and
// whose entropy is known exactly, so a training run on it can be judged against the truth.
//
// Every choice is uniform among the alternatives of one rule, so -log p(story) is the sum of
// log(alternatives) over its choices. A few choices (the hero, the friend, the place) are facts:
// later sentences repeat them at no cost in entropy, and a model earns that only by using its
// context.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/rng.h"

namespace millrace {

// A run of text, or a rule to expand (`form` < 0), or a fact to repeat in one of its forms.
struct GrammarPiece {
  std::string text;
  int rule = -1;
  int form = -1;
};

// One way to expand a rule: either pieces in a row, or a fact's forms ("Tom", "He").
struct GrammarAlternative {
  std::vector<GrammarPiece> pieces;
  std::vector<std::string> forms;
};

struct GrammarRule {
  std::string name;
  std::vector<GrammarAlternative> alternatives;
};

// The rules; the first one is the story.
const std::vector<GrammarRule>& grammar_rules();

struct GrammarStory {
  std::string text;              // ends with the only newline of the story
  std::vector<int32_t> choices;  // the derivation, leftmost first
};
GrammarStory grammar_story(RandomStream& random);

// Whole stories until there are at least `min_chars` characters. The same seed and stream give the
// same text, and a longer text begins with the shorter one.
std::string grammar_stories(uint64_t seed, int64_t min_chars, uint64_t stream = 0);

// Every character the grammar can write, sorted.
std::string grammar_alphabet();

// The entropy rate of the text in nats per character: E[-log p(story)] / E[characters of a story].
// Stories are independent draws from one distribution, which makes the rate this ratio (renewal
// reward theorem), and a text has one derivation only, which makes p(story) the derivation's
// probability; the test parses text back to show it.
//
// A model that reads windows cut at random places cannot know what stood before a window. Exact
// filtering over all derivations shows that this costs the best possible predictor about 3.9 nats a
// window (250 windows sampled), all of it within the first 64 characters: the mean loss over whole
// windows of T stays above the entropy by 3.9 / T, the mean loss from the 64th character on need
// not.
double grammar_entropy_per_char();

}  // namespace millrace
