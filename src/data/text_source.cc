#include "data/text_source.h"

#include <glob.h>

#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "data/grammar.h"
#include "io/byte_stream.h"
#include "io/quote.h"

namespace millrace {
namespace {

Error config_error(std::string what, std::string where, std::string expected, std::string got,
                   std::string remedy) {
  return Error({.code = ErrorCode::config,
                .what = std::move(what),
                .where = std::move(where),
                .expected = std::move(expected),
                .got = std::move(got),
                .remedy = std::move(remedy)});
}

bool is_text_name(const fs::path& path) {
  const fs::path last = path.extension();
  return last == ".txt" || ((last == ".gz" || last == ".zst") && path.stem().extension() == ".txt");
}

std::vector<fs::path> text_files_in(const fs::path& folder, const std::string& key) {
  std::vector<fs::path> files;
  std::error_code fault;
  for (fs::directory_iterator it(folder, fault), end; !fault && it != end; it.increment(fault)) {
    std::error_code ignored;  // a dangling link is not a text file
    if (is_text_name(it->path()) && it->is_regular_file(ignored)) {
      files.push_back(it->path());
    }
  }
  if (fault) {
    throw config_error(fmt::format("cannot list the folder {}", folder.string()), key,
                       "a readable folder", fault.message(), "check its permissions");
  }
  if (files.empty()) {
    throw config_error(fmt::format("no text in the folder {}", folder.string()), key,
                       "at least one file *.txt, *.txt.gz or *.txt.zst", "none",
                       "name the files themselves, or a pattern such as `folder/*`");
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<fs::path> files_matching(const std::string& pattern, const std::string& key) {
  glob_t found{};
  const int status = glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<fs::path> files;
  for (size_t i = 0; i < found.gl_pathc; ++i) {
    std::error_code ignored;
    if (fs::is_regular_file(found.gl_pathv[i], ignored)) files.emplace_back(found.gl_pathv[i]);
  }
  globfree(&found);
  if ((status != 0 && status != GLOB_NOMATCH) || files.empty()) {
    throw config_error(fmt::format("no file matches {}", pattern), key, "at least one file", "none",
                       "check the pattern; a relative one starts at the current folder");
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<fs::path> files_of(const std::string& path, const std::string& key) {
  if (path.starts_with("builtin:")) {
    throw config_error(fmt::format("{} is no file", path), key,
                       fmt::format("files, or {} alone for data.train", kBuiltinGrammar), path,
                       fmt::format("give files only, or data.train={} only", kBuiltinGrammar));
  }
  std::error_code fault;
  const fs::file_status status = fs::status(path, fault);
  if (fs::is_regular_file(status)) return {path};
  if (fs::is_directory(status)) return text_files_in(path, key);
  if (fs::exists(status)) {
    throw config_error(fmt::format("{} is not a regular file", path), key, "a file or a folder",
                       "a device, pipe or socket", "copy the text into a file first");
  }
  if (path.find_first_of("*?[") != std::string::npos) return files_matching(path, key);
  throw config_error(fmt::format("cannot open `{}`", path), key,
                     "a text file, a folder of *.txt files, or a pattern",
                     fault ? fault.message() : "nothing there",
                     "check the spelling; a relative path starts at the current folder");
}

// The first `count` characters: bytes for `byte`, else code points.
void truncate(TextSource& source, int64_t count, bool code_points) {
  size_t end = 0;
  while (end < source.text.size()) {
    const bool starts_one = !code_points || (source.text[end] & 0xC0) != 0x80;
    if (starts_one && count-- == 0) break;
    ++end;
  }
  source.text.resize(end);
  std::erase_if(source.parts, [&](const TextSource::Part& part) { return part.begin >= end; });
}

template <typename Use>
void for_each_part(const TextSource& source, Use use) {
  for (size_t i = 0; i < source.parts.size(); ++i) {
    const size_t begin = source.parts[i].begin;
    const size_t end = i + 1 < source.parts.size() ? source.parts[i + 1].begin : source.text.size();
    use(std::string_view(source.text).substr(begin, end - begin), source.parts[i].name);
  }
}

TextSource grammar_source(uint64_t seed, int64_t chars, uint64_t stream) {
  return {.text = grammar_stories(seed, chars, stream), .parts = {{kBuiltinGrammar, 0}}};
}

void check_options(const TextDataOptions& options, bool grammar) {
  const double fraction = options.validation_fraction;
  if (!(fraction >= 0 && fraction < 1)) {
    throw config_error("bad data.validation_fraction", "data.validation_fraction",
                       "at least 0 and below 1", fmt::format("{}", fraction),
                       "0.1 keeps a tenth of the text for validation");
  }
  const std::string& tokenizer = options.tokenizer;
  if (tokenizer != "char" && tokenizer != "byte" && !tokenizer.ends_with(".json")) {
    const std::vector<std::string> known = {"char", "byte", "tokenizer.json"};
    const std::string near = nearest(tokenizer, known);
    throw config_error("unknown tokenizer", "data.tokenizer",
                       "`char`, `byte` or the path of a tokenizer.json", quote(tokenizer),
                       near.empty() ? "data.tokenizer=char" : "did you mean `" + near + "`?");
  }
  std::error_code fault;
  if (tokenizer.ends_with(".json") && !fs::is_regular_file(tokenizer, fault)) {
    throw config_error(fmt::format("cannot open `{}`", tokenizer), "data.tokenizer",
                       "a tokenizer.json", fault ? fault.message() : "not a file",
                       "check the spelling; a relative path starts at the current folder");
  }
  if (options.max_chars < 0) {
    throw config_error("bad data.max_chars", "data.max_chars", "0 (all) or more",
                       std::to_string(options.max_chars), "leave it out to read all of the text");
  }
  if (grammar && options.grammar_chars < 1) {
    throw config_error("bad data.grammar_chars", "data.grammar_chars", "1 or more",
                       std::to_string(options.grammar_chars), "3000000 is plenty");
  }
  const bool own =
      options.validation.empty() || options.validation == std::vector<std::string>{kBuiltinGrammar};
  if (grammar && !own) {
    throw config_error("the grammar writes its own validation text", "data.validation", "no paths",
                       options.validation[0], "leave data.validation out");
  }
}

void check_window(const std::vector<int32_t>& tokens, int64_t window, const std::string& what,
                  const std::string& key, std::string remedy) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (count >= window) return;
  if (count > 1) remedy += fmt::format(", or set training.max_length={} or less", count - 1);
  throw config_error(
      fmt::format("the {} text is shorter than one window", what), key,
      fmt::format("at least {} tokens (training.max_length + 1)", with_commas(window)),
      fmt::format("{} tokens", with_commas(count)), std::move(remedy));
}

}  // namespace

TextSource read_text_source(const std::vector<std::string>& paths, const std::string& key) {
  if (paths.empty()) {
    throw config_error("no text given", key, "a file, a folder or a pattern", "nothing",
                       fmt::format("set {}", key));
  }
  TextSource source;
  for (const std::string& path : paths) {
    const size_t before = source.text.size();
    for (const fs::path& file : files_of(path, key)) {
      source.parts.push_back({file.string(), source.text.size()});
      append_unpacked_file(file, source.text);
    }
    if (source.text.size() == before) {
      throw config_error(fmt::format("{} is empty", path), key, "text", "0 bytes",
                         "leave it out, or put text into it");
    }
  }
  return source;
}

std::vector<int32_t> encode_text(const TextSource& source, const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
  for_each_part(source, [&](std::string_view text, const std::string& name) {
    tokenizer.encode(text, {name}, tokens);
  });
  return tokens;
}

TextData load_text_data(const TextDataOptions& options) {
  const bool grammar = options.train == std::vector<std::string>{kBuiltinGrammar};
  check_options(options, grammar);
  const bool chars = options.tokenizer == "char", bytes = options.tokenizer == "byte";
  const double fraction = options.validation_fraction;

  TextSource source = grammar ? grammar_source(options.seed, options.grammar_chars, 0)
                              : read_text_source(options.train, "data.train");
  if (options.max_chars > 0) truncate(source, options.max_chars, !bytes);

  TextData data;
  if (bytes) {
    data.tokenizer = make_byte_tokenizer();
  } else if (!chars) {
    data.tokenizer = read_tokenizer(options.tokenizer);
  } else if (grammar) {
    data.tokenizer = make_char_tokenizer(grammar_alphabet(), {kBuiltinGrammar});
  } else {
    for_each_part(source, [](std::string_view text, const std::string& name) {
      check_utf8(text, {name});  // here, so that the Error names the file
    });
    data.tokenizer = make_char_tokenizer(source.text, {"data.train"});
  }
  data.train = encode_text(source, *data.tokenizer);
  if (grammar) {
    if (chars || bytes) data.entropy_per_token = grammar_entropy_per_char();
    const auto count = static_cast<int64_t>(fraction * static_cast<double>(options.grammar_chars));
    data.validation = encode_text(grammar_source(options.seed, count, 1), *data.tokenizer);
  } else if (!options.validation.empty()) {
    data.validation =
        encode_text(read_text_source(options.validation, "data.validation"), *data.tokenizer);
  } else {
    const auto count = static_cast<ptrdiff_t>(fraction * static_cast<double>(data.train.size()));
    data.validation.assign(data.train.end() - count, data.train.end());
    data.train.erase(data.train.end() - count, data.train.end());
  }

  check_window(data.train, options.window, "training", "data.train",
               grammar ? "raise data.grammar_chars" : "give more text");
  if (!grammar && !options.validation.empty()) {
    check_window(data.validation, options.window, "validation", "data.validation",
                 "give more text");
  } else if (fraction > 0) {
    check_window(data.validation, options.window, "validation", "data.validation_fraction",
                 "raise data.validation_fraction or set it to 0 (no validation)");
  }
  const std::string name = source.parts.size() == 1 ? source.parts[0].name
                                                    : fmt::format("{} files", source.parts.size());
  data.description =
      fmt::format("{}: {} training and {} validation tokens, {} tokenizer with a vocabulary of {}",
                  name, with_commas(static_cast<int64_t>(data.train.size())),
                  with_commas(static_cast<int64_t>(data.validation.size())), data.tokenizer->name(),
                  data.tokenizer->vocab_size());
  return data;
}

}  // namespace millrace
