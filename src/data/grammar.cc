#include "data/grammar.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "core/error.h"

namespace millrace {
namespace {

struct TableRow {
  const char* name;
  const char* alternatives;
};

// `|` parts alternatives, `/` parts the forms of a fact, <rule> expands a rule, and <rule:n>
// repeats form n of the story's latest choice of that rule. A model that sees a window cut out of
// the middle of a story pays for each fact it has not seen, so facts are few and are repeated soon.
constexpr TableRow kTable[] = {
    {"story", "<opening> <reply> <rest>\n"},
    {"opening",
     "One <sky> day <hero> met a <adj> <friend> <near> the <place>."
     "|<hero> had a <adj> <friend> <near> the <place>."
     "|<hero> and a <adj> <friend> <did> <near> the <place>."},
    {"reply",
     "The <friend:0> <act>"
     "|<hero:1> and the <friend:0> <act>"
     "|The <friend:0> was <adj>, so <hero:0> <act>"
     "|The <place:0> was <adj>, so they <act>"
     "|\"Do you like <adj> <things>?\" said the <friend:0>."},
    {"rest",
     "They <act> <rest>"
     "|<child> <act> <rest>"
     "|<child> and <child> <act> <rest>"
     "|<child> was <adj>. <rest>"
     "|The <adj> <things> <did><after> <rest>"
     "|At last they <act>"},
    {"act",
     "<did><after>"
     "|<made> <adj> <things><after>"
     "|<made> <adj> <adj> <things><after>"},
    {"after",
     ".| and <act>|, then <act>| with <child>.| <near> the <place>.| <near> <adj> <things>."},
    {"near", "by|at|in|near"},
    {"sky", "sunny|rainy|windy|snowy|foggy|misty|warm|cold"},
    {"hero",
     "Ben/He|Tom/He|Max/He|Sam/He|Leo/He|Dan/He|Mia/She|Ann/She|Eva/She|Zoe/She|Amy/She|Ida/She"},
    {"child",
     "Abe|Bob|Gus|Hal|Jim|Kit|Ned|Pip|Ray|Roy|Ted|Ian|Lee|Jay|Guy|Jon|Dot|Eve|Fay|Joy|Liz|May|Sue"
     "|Una|Val|Ada|Bea|Cleo|Dora|Ella|Fern|Gina|Jane|Kate|Lily|Nora|Rosa|Ruby|Tess|Vera"},
    {"friend", "fox|hen|cat|dog|pig|cow|owl|bee|frog|duck|goat|bear"},
    {"things",
     "cats|dogs|pigs|cows|owls|bees|bats|rams|elks|cubs|pups|frogs|ducks|goats|bears|hares|lambs"
     "|crows|moles|swans|toads|seals|lions|crabs|hats|keys|cups|maps|pens|bags|pots|rugs|fans"
     "|caps|jars|mugs|nets|bows|tops|kites|balls|drums|boats|bells|books|lamps|coats|rings|flags"
     "|dolls|sleds|shoes|socks|harps|carts|plums|nuts|figs|eggs|pears|pies|cakes|buns|toys"},
    {"adj",
     "shy|sad|glad|kind|wise|calm|lazy|bold|good|nice|sick|lost|cold|warm|proud|brave|happy|merry"
     "|jolly|silly|funny|sweet|tired|quiet|wet|dry|hot|keen|sly|red|big|new|tame|tan|blue|pink"
     "|gold|gray|soft|tiny|neat|long|tall|thin|cute|dear|fine|huge|tidy|green|white|brown|round"
     "|shiny|small"},
    {"place",
     "mill|well|barn|pond|hill|lake|farm|gate|cave|road|tree|shop|wood|bay|sea|inn|zoo|hut|den"
     "|park|yard|dock|fort|pier"},
    {"did",
     "ran|sat|dug|hid|sang|swam|spun|wept|read|rode|slept|fell|flew|woke|won|knit|rowed|drew|slid"
     "|crept|leapt|dozed|joked|baked|raced|hiked|waved|fished|danced|played|smiled|lay|cried"
     "|jumped"},
    {"made", "made|found|lost|took|got|saw|kept|sold|fed|met|led|had|held|sent|gave|hugged"},
};

// The text between <> turned into a piece.
GrammarPiece reference(std::string_view inside, const std::vector<GrammarRule>& rules) {
  GrammarPiece piece;
  const size_t colon = inside.find(':');
  if (colon != std::string_view::npos) piece.form = inside[colon + 1] - '0';
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const GrammarRule& r) {
    return r.name == inside.substr(0, colon);
  });
  MR_CHECK(rule != rules.end(), "grammar rule <{}>", inside);
  piece.rule = static_cast<int>(rule - rules.begin());
  return piece;
}

GrammarAlternative alternative(std::string_view text, const std::vector<GrammarRule>& rules) {
  GrammarAlternative result;
  if (text.find('<') == std::string_view::npos) {
    for (size_t slash; (slash = text.find('/')) != std::string_view::npos;
         text.remove_prefix(slash + 1)) {
      result.forms.emplace_back(text.substr(0, slash));
    }
    result.forms.emplace_back(text);
    return result;
  }
  while (!text.empty()) {
    if (text[0] == '<') {
      const size_t close = text.find('>');
      result.pieces.push_back(reference(text.substr(1, close - 1), rules));
      text.remove_prefix(close + 1);
    } else {
      const size_t end = std::min(text.find('<'), text.size());
      result.pieces.push_back({.text = std::string(text.substr(0, end))});
      text.remove_prefix(end);
    }
  }
  return result;
}

std::vector<GrammarRule> build_rules() {
  std::vector<GrammarRule> rules;
  for (const TableRow& row : kTable) rules.push_back({.name = row.name, .alternatives = {}});
  for (size_t r = 0; r < rules.size(); ++r) {
    std::string_view text = kTable[r].alternatives;
    for (size_t bar; (bar = text.find('|')) != std::string_view::npos;
         text.remove_prefix(bar + 1)) {
      rules[r].alternatives.push_back(alternative(text.substr(0, bar), rules));
    }
    rules[r].alternatives.push_back(alternative(text, rules));
  }
  return rules;
}

class Writer {
 public:
  Writer(RandomStream& random, GrammarStory& story)
      : random_(random), story_(story), latest_(grammar_rules().size()) {}

  void expand(int rule) {
    const auto& alternatives = grammar_rules()[static_cast<size_t>(rule)].alternatives;
    const size_t choice = random_.below(alternatives.size());
    const GrammarAlternative& chosen = alternatives[choice];
    story_.choices.push_back(static_cast<int32_t>(choice));
    latest_[static_cast<size_t>(rule)] = &chosen;
    if (!chosen.forms.empty()) story_.text += chosen.forms[0];
    for (const GrammarPiece& piece : chosen.pieces) {
      if (piece.rule < 0) {
        story_.text += piece.text;
      } else if (piece.form < 0) {
        expand(piece.rule);
      } else {
        const GrammarAlternative* fact = latest_[static_cast<size_t>(piece.rule)];
        MR_CHECK(fact != nullptr, "a fact is repeated before it is chosen");
        story_.text += fact->forms[static_cast<size_t>(piece.form)];
      }
    }
  }

 private:
  RandomStream& random_;
  GrammarStory& story_;
  std::vector<const GrammarAlternative*> latest_;  // per rule
};

}  // namespace

const std::vector<GrammarRule>& grammar_rules() {
  static const std::vector<GrammarRule> rules = build_rules();
  return rules;
}

GrammarStory grammar_story(RandomStream& random) {
  GrammarStory story;
  Writer(random, story).expand(0);
  return story;
}

std::string grammar_stories(uint64_t seed, int64_t min_chars, uint64_t stream) {
  RandomStream random(seed, RandomUse::grammar, stream);
  std::string text;
  while (static_cast<int64_t>(text.size()) < min_chars) text += grammar_story(random).text;
  return text;
}

std::string grammar_alphabet() {
  std::set<char> letters;
  for (const GrammarRule& rule : grammar_rules()) {
    for (const GrammarAlternative& chosen : rule.alternatives) {
      for (const auto& piece : chosen.pieces) letters.insert(piece.text.begin(), piece.text.end());
      for (const auto& form : chosen.forms) letters.insert(form.begin(), form.end());
    }
  }
  return {letters.begin(), letters.end()};
}

double grammar_entropy_per_char() {
  // Expectations of a rule are those of its alternatives, averaged. A repeated fact adds the mean
  // length of its form, because how often it is repeated does not depend on what it is. One rule
  // refers to itself, so the equations are solved by substitution from zero: the values only grow
  // and are bounded, hence they stop changing.
  const auto& rules = grammar_rules();
  struct Expected {
    double nats = 0, chars = 0;
  };
  std::vector<Expected> expected(rules.size());
  const auto form_chars = [&](const GrammarPiece& piece) {
    double sum = 0;
    const auto& facts = rules[static_cast<size_t>(piece.rule)].alternatives;
    for (const auto& fact : facts) {
      sum += static_cast<double>(fact.forms[static_cast<size_t>(piece.form)].size());
    }
    return sum / static_cast<double>(facts.size());
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t r = 0; r < rules.size(); ++r) {
      const auto count = static_cast<double>(rules[r].alternatives.size());
      Expected sum;
      for (const GrammarAlternative& chosen : rules[r].alternatives) {
        if (!chosen.forms.empty()) sum.chars += static_cast<double>(chosen.forms[0].size());
        for (const GrammarPiece& piece : chosen.pieces) {
          if (piece.rule < 0) {
            sum.chars += static_cast<double>(piece.text.size());
          } else if (piece.form < 0) {
            sum.nats += expected[static_cast<size_t>(piece.rule)].nats;
            sum.chars += expected[static_cast<size_t>(piece.rule)].chars;
          } else {
            sum.chars += form_chars(piece);
          }
        }
      }
      const Expected now{std::log(count) + sum.nats / count, sum.chars / count};
      changed |= now.nats > expected[r].nats || now.chars > expected[r].chars;
      expected[r] = now;
    }
  }
  return expected[0].nats / expected[0].chars;
}

}  // namespace millrace
