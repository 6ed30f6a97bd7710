// How byte-level BPE cuts text into words before it merges: the expressions of GPT-2 and of
// Llama 3, scanned by hand, and any other one by PCRE2; where digits stand apart, at these first. A
// byte that is not UTF-8 counts as a sign that is neither letter, number nor space.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace millrace {

class WordSplitter {
 public:
  virtual ~WordSplitter() = default;
  // The end of the word that begins at `at` < text.size(); the text's end counts as one.
  virtual size_t word_end(std::string_view text, size_t at) const = 0;
  // A word always ends between an ASCII letter and a space, whatever stands around them.
  virtual bool letters_end_at_space() const { return true; }
};

std::unique_ptr<WordSplitter> make_gpt2_splitter();
// The expression as tokenizer.json writes it. Error with `where` when it is none.
std::unique_ptr<WordSplitter> make_splitter(const std::string& expression,
                                            const std::string& where);
// What lies between digits as `between` cuts it, which is of GPT-2 or nothing: one word. `each`: a
// digit is a word, else a run of them.
std::unique_ptr<WordSplitter> make_digit_splitter(bool each, std::unique_ptr<WordSplitter> between);
// "gpt-2" or "llama-bpe", as llama.cpp calls the two; empty: another one.
std::string splitter_name(std::string_view expression);

}  // namespace millrace
