// The tokenizers alone, for bench/run data and tests/golden/compare_tokenizers.py.
//
//   millrace_tokenize TOKENIZER ids STRINGS
//       a line of JSON string each -> a line of ids each
//   millrace_tokenize TOKENIZER time TEXT THREADS
//       for every line on standard input a pass over the lines of the text: a line of JSON
#include <atomic>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "data/tokenizer.h"

namespace millrace {
namespace {

constexpr int64_t kMost = int64_t{4} << 30;

void print_ids(const Tokenizer& tokenizer, const std::string& path) {
  const std::string text = read_file(path, kMost);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const auto line = nlohmann::json::parse(text.substr(begin, end - begin)).get<std::string>();
    std::vector<int32_t> ids;
    tokenizer.encode(line, {path}, ids);
    if (tokenizer.decode(ids) != line) std::printf("not the same when decoded ");
    std::string out;
    for (const int32_t id : ids) out += fmt::format("{} ", id);
    std::puts(out.c_str());
    begin = end + 1;
  }
}

void time_passes(const Tokenizer& tokenizer, const std::string& path, int threads) {
  const std::string text = read_file(path, kMost);
  std::vector<std::string_view> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
  constexpr size_t kPiece = 1024;
  for (int c; (c = std::getchar()) != EOF;) {
    if (c != '\n') continue;
    const int64_t start = now_ns();
    std::atomic<size_t> next = 0;
    std::atomic<int64_t> tokens = 0;
    auto work = [&] {
      std::vector<int32_t> ids;
      for (size_t first; (first = next.fetch_add(kPiece)) < lines.size();) {
        for (size_t i = first; i < std::min(first + kPiece, lines.size()); ++i) {
          ids.clear();
          tokenizer.encode(lines[i], {path}, ids);
          tokens += static_cast<int64_t>(ids.size());
        }
      }
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work);
    work();
    for (std::thread& t : others) t.join();
    fmt::print("{{\"ms\": {}, \"tokens\": {}, \"bytes\": {}}}\n", 1e3 * seconds_since(start),
               tokens.load(), text.size());
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.size() == 3 && words[1] == "ids") {
      millrace::print_ids(*millrace::read_tokenizer(words[0]), words[2]);
      return 0;
    }
    if (words.size() == 4 && words[1] == "time") {
      millrace::time_passes(*millrace::read_tokenizer(words[0]), words[2], std::stoi(words[3]));
      return 0;
    }
    std::fputs("usage: millrace_tokenize TOKENIZER (ids STRINGS | time TEXT THREADS)\n", stderr);
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
