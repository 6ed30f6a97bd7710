// millrace generate: text from a trained model, to standard output: drawn token by token, or the
// likeliest that a beam search finds for each source or prompt.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <utility>

#include "cli/commands.h"
#include "cli/device.h"
#include "cli/model_folder.h"
#include "cli/predict_paths.h"
#include "cli/standard_output.h"
#include "core/clock.h"
#include "core/text.h"
#include "core/utf8_stream.h"
#include "data/record_file.h"
#include "io/quote.h"
#include "io/utf8.h"
#include "train/beam_search.h"
#include "train/program.h"
#include "train/weights.h"

namespace millrace {
namespace {

Error usage(const std::string& what, const std::string& expected, const std::string& got,
            const std::string& remedy) {
  return Error({.code = ErrorCode::config,
                .what = what,
                .where = "command line",
                .expected = expected,
                .got = got,
                .remedy = remedy});
}

std::vector<int32_t> parse_ids(const std::string& text, int64_t vocab_size) {
  std::vector<int32_t> ids;
  const char *at = text.data(), *end = at + text.size();
  while (at <= end) {
    int32_t id = -1;
    const auto [stop, fault] = std::from_chars(at, end, id);
    if (fault != std::errc() || id < 0 || id >= vocab_size || (stop != end && *stop != ','))
      throw usage("--prompt-ids is not a list of tokens",
                  fmt::format("numbers from 0 to {} with commas", vocab_size - 1),
                  fmt::format("{} at character {}",
                              quote(text.substr(static_cast<size_t>(at - text.data()), 40)),
                              at - text.data() + 1),
                  "--prompt-ids 1,2,3");
    ids.push_back(id);
    at = stop + 1;
  }
  return ids;
}

struct Prompt {
  BeamSource source;              // or what a text begins with
  std::vector<std::string> rare;  // words that its ids behind the vocabulary stand for
};

// What a command works with: a model, what it is loaded from, and where it runs.
struct Loaded {
  const GenerateArguments& arguments;
  fs::path folder;
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;  // null: ids go in and out
  std::unique_ptr<Backend> backend;
  PassOptions passes;
  PromptFrame frame;      // of a prompt that is text
  BeamOptions beam = {};  // of 0: texts are drawn

  bool pairs() const { return model->takes().pairs; }
  int64_t allowed() const { return tokenizer ? tokenizer->vocab_size() : model->vocab_size(); }
  TargetTokens target() const {
    if (!tokenizer) return {.start = -1, .end = -1, .count = allowed()};
    const int32_t start = tokenizer->start_id() >= 0 ? tokenizer->start_id() : tokenizer->end_id();
    return {start, tokenizer->end_id(), tokenizer->unknown_id(), allowed()};
  }
  Prompt encoded(const std::string& text, const TextPlace& place) const {
    if (!tokenizer->takes_any_bytes())
      if (const auto fault = utf8_fault(text, place, "convert the text to UTF-8"))
        throw Error(*fault);
    Prompt prompt;
    if (model->takes().open_words) {
      prompt.source = source_to_copy(*tokenizer, text, place, prompt.rare);
    } else {
      // As sources ended in training; of a model of pairs it is always so.
      const auto& behind = pairs() ? std::vector{tokenizer->end_id()} : frame.behind;
      if (!pairs()) prompt.source.ids = frame.before;
      tokenizer->encode(text, place, prompt.source.ids);
      prompt.source.ids.insert(prompt.source.ids.end(), behind.begin(), behind.end());
    }
    return prompt;
  }
  // Tokens of a source or prompt that the model reads.
  int64_t kept(int64_t length) const {
    const MaxLengths most = model->max_lengths();
    return pairs() ? std::min(length, most.source) : prompt_kept(length, most.target);
  }
  std::string cut_text(int64_t cut) const {
    if (cut == 0) return "";
    return pairs() ? fmt::format("; {} sources lost what is behind token {}", with_commas(cut),
                                 model->max_lengths().source)
                   : fmt::format("; {} prompts lost their beginning: there is room for {} tokens",
                                 with_commas(cut), model->max_lengths().target);
  }
  std::string shown(std::span<const int32_t> tokens, std::span<const std::string> rare) const {
    if (!arguments.ids) return tokenizer->decode_extended(tokens, rare);
    std::string text;
    for (const int32_t token : tokens) text += fmt::format("{} ", token);
    return text;
  }
};

std::unique_ptr<Tokenizer> tokenizer_of(const fs::path& folder, const Model& model) {
  try {
    return load_tokenizer(folder, &model);
  } catch (const Error& e) {
    ErrorFields fields = e.fields();
    fields.remedy += "; or give the prompt as --prompt-ids 1,2,3 and take ids back with --ids";
    throw Error(fields);
  }
}

Loaded load(const GenerateArguments& arguments) {
  check_device(arguments.device, "--device");
  Loaded l{arguments, find_model_folder(Settings().runs_folder, arguments.folder), {}, {}, {}, {},
           {}};
  l.model = load_model_config(l.folder);
  if (const std::string note = check_folder(l.folder, *l.model); !note.empty())
    std::fprintf(stderr, "note     %s\n", note.c_str());
  if (!l.model->takes().states && (arguments.prompt_ids.empty() || !arguments.ids || l.pairs()))
    l.tokenizer = tokenizer_of(l.folder, *l.model);
  if (l.tokenizer) l.frame = prompt_frame(l.folder, *l.tokenizer);
  l.backend = open_device(arguments.device, {}, [](const std::string& text) {
    std::fprintf(stderr, "%s\n", text.c_str());
  });
  Settings settings;
  settings.precision = arguments.precision;
  settle_precision(settings, *l.backend, "--precision");
  l.passes = settings.pass_options();
  return l;
}

// The field of an input that has them: as said, or what the run was trained on.
std::string field_of(const GenerateArguments& arguments, const fs::path& folder) {
  if (!arguments.field.empty()) return arguments.field;
  const fs::path config = folder / "config.resolved.yaml";
  std::vector<std::string> fields;
  if (fs::is_regular_file(config))
    fields = load_settings({config.string(), {}})->settings.data.fields;
  return fields.empty() ? "text" : fields[0];
}

// Line ends would make several lines of a text.
std::string on_one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

// Refuses options that are none, contradict each other or do nothing in what is to be done.
void check_options(const Loaded& l) {
  const GenerateArguments& a = l.arguments;
  a.given.refuse({"--class-column"}, "writing text", "leave it out: the model reads no paths");
  if (l.beam.beam > 0) {
    a.given.refuse({"--temperature", "--top-k", "--top-p", "--seed"}, "a beam search",
                   "leave it out, or --beam 0, which draws");
    check_beam(l.beam, l.allowed(), std::min(a.options.max_tokens, l.model->max_lengths().target),
               option_spelling());
    return;
  }
  a.given.refuse({"--length-penalty", "--no-repeat-ngram", "--min-tokens", "--at-once"},
                 "drawing a text", "leave it out, or --beam 4, which searches");
}

// The prompts of a file, record by record, or the one of the command line.
class Prompts {
 public:
  explicit Prompts(const Loaded& loaded) : loaded_(loaded) {
    const GenerateArguments& a = loaded.arguments;
    if (!a.input.empty())
      open(a);
    else if (!a.prompt_ids.empty())
      one_ = from_ids(parse_ids(a.prompt_ids, loaded.model->vocab_size()));
    else
      one_ = loaded.encoded(a.prompt, {"--prompt"});
  }
  std::optional<Prompt> next() {
    if (!file_) return std::exchange(one_, std::nullopt);
    std::vector<std::string> fields;
    std::vector<TextPlace> places;
    switch (file_->next(fields, places)) {
      case RecordFile::Got::end:
        return std::nullopt;
      case RecordFile::Got::bad: {
        ErrorFields fault = file_->fault().fields();
        fault.remedy = "mend the record, or name another field: --field NAME";
        throw Error(fault);
      }
      case RecordFile::Got::record:
        break;
    }
    return loaded_.encoded(fields[0], places[0]);
  }

 private:
  void open(const GenerateArguments& a) {
    const DataFormat format = format_of("auto", {a.input});
    if (has_names(format)) {
      file_ = open_record_file(format, a.input, {}, {field_of(a, loaded_.folder)}, "--field");
      return;
    }
    if (!a.field.empty())
      throw usage("the input has no named fields", "a file *.csv, *.tsv or *.jsonl", a.input,
                  "leave --field out");
    file_ = open_record_file(DataFormat::lines, a.input, {}, {});
  }
  Prompt from_ids(std::vector<int32_t> ids) const {
    Prompt prompt;
    prompt.source.ids = std::move(ids);
    if (loaded_.model->takes().open_words) prompt.source.open = prompt.source.ids;
    return prompt;
  }
  const Loaded& loaded_;
  std::unique_ptr<RecordFile> file_;
  std::optional<Prompt> one_;
};

// Texts drawn token by token, each shown as it comes.
void draw(const Loaded& l, Prompts& prompts) {
  const GenerateArguments& arguments = l.arguments;
  GenerateOptions options = arguments.options;
  const bool file = !arguments.input.empty();
  std::optional<Prompt> prompt = prompts.next();
  // No more cache than the text can fill.
  const int64_t wanted = std::max<int64_t>(1, options.max_tokens) +
                         (prompt && !file && !l.pairs() ? std::ssize(prompt->source.ids) : 0),
                capacity = file && !l.pairs() ? l.model->max_lengths().target
                                              : std::min(l.model->max_lengths().target, wanted);
  const DecodePlans plans = make_decode_plans(*l.model, capacity, l.passes, *l.backend);
  const Plan* const both[] = {&plans.prefill, &plans.decode};
  const Plan refresh = make_refresh_plan(both, *l.backend);
  Session session(*l.backend, {&plans.prefill, &plans.decode, &refresh});
  load_model(l.folder, session, *l.model);
  session.run(2);
  GeneratePlans places{0, 1, capacity};
  if (l.pairs()) {
    places.max_source = l.model->max_lengths().source;
    places.start_id = l.target().start;
    places.unknown_id = l.target().unknown;
  }
  int64_t cut = 0, drawn = 0, prefilled = 0, decoded = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  auto show = [&](const std::string& text) { put(file ? on_one_line(text) : text); };
  for (; prompt; prompt = prompts.next(), ++options.number) {
    if (prompt->source.ids.empty()) {  // nothing to go on from: a line for each all the same
      put("\n");
      continue;
    }
    Utf8Stream utf8;
    bool opens = true;
    const int64_t length = std::ssize(prompt->source.ids);
    cut += l.kept(length) < length ? 1 : 0;
    // Beside copied words stand others as they do in a whole text alone.
    const bool whole = l.model->takes().open_words && !arguments.ids;
    std::vector<int32_t> words;
    const Generated g = generate(
        session, places, l.allowed(), std::move(prompt->source.ids), options,
        [&](int32_t token) {
          ++drawn;
          if (l.tokenizer && l.tokenizer->is_end(token)) return false;
          words.push_back(token);
          if (whole) return true;
          // The first of a target has nothing before it.
          const bool first = l.pairs() && std::exchange(opens, false);
          show(arguments.ids ? fmt::format("{} ", token)
                             : utf8.add(first ? l.tokenizer->decode({&token, 1})
                                              : l.tokenizer->token_text(token)));
          return true;
        },
        std::move(prompt->source.open));
    if (whole) show(l.shown(words, prompt->rare));
    // A line end behind ids and behind each of many; behind one text only for a person, so that a
    // file holds the text alone.
    const bool line_end = arguments.ids || file || isatty(STDOUT_FILENO) != 0;
    show(arguments.ids ? "" : utf8.finish());
    put(line_end ? "\n" : "");
    prefilled += g.prefilled;
    decoded += g.decoded;
    prefill_seconds += g.prefill_seconds;
    decode_seconds += g.decode_seconds;
  }
  auto per_token = [](double seconds, int64_t tokens) {
    return tokens > 0 ? 1e3 * seconds / static_cast<double>(tokens) : 0.0;
  };
  const double seconds = prefill_seconds + decode_seconds;
  std::fprintf(
      stderr, "%s\n",
      fmt::format("generated {} tokens: {:.1f} tok/s; prompt {} tokens, {:.2f} ms each; then "
                  "{:.2f} ms per token; {} memory{}",
                  drawn, seconds > 0 ? static_cast<double>(drawn) / seconds : 0.0, prefilled,
                  per_token(prefill_seconds, prefilled), per_token(decode_seconds, decoded),
                  human_bytes(session.allocated_bytes()), l.cut_text(cut))
          .c_str());
}

// The likeliest texts, many at a time; a window of sources is sorted by length, so that those of a
// batch end at about the same time.
void search(const Loaded& l, Prompts& prompts) {
  constexpr size_t kWindow = 32;  // batches
  constexpr int64_t kRound = 16;  // lengths that a plan is made for
  const GenerateArguments& arguments = l.arguments;
  const MaxLengths most = l.model->max_lengths();
  const int64_t max_length = std::min(arguments.options.max_tokens, most.target);
  auto at_once = static_cast<size_t>(arguments.at_once > 0
                                         ? arguments.at_once
                                         : sources_at_once(*l.backend, *l.model, l.beam.beam));
  std::unique_ptr<BeamSession> beam;
  int64_t room = 0, texts = 0, tokens = 0, cut = 0;
  const int64_t begin = now_ns();
  int64_t said = begin;
  double preparing = 0;
  for (bool more = true; more;) {
    std::vector<Prompt> sources;
    int64_t longest = 1;
    while (more && sources.size() < kWindow * at_once) {
      auto source = prompts.next();
      more = source.has_value();
      if (!more) break;
      const int64_t length = std::ssize(source->source.ids);
      cut += l.kept(length) < length ? 1 : 0;
      longest = std::max(longest, l.kept(length));
      sources.push_back(std::move(*source));
    }
    if (longest > room) {
      const int64_t start = now_ns();
      at_once = std::clamp<size_t>(sources.size(), 1, at_once);
      room =
          std::min(l.pairs() ? most.source : most.target, (longest + kRound - 1) / kRound * kRound);
      beam.reset();
      beam = std::make_unique<BeamSession>(
          *l.model, BeamRoom{static_cast<int64_t>(at_once), room, max_length}, l.beam, l.passes,
          *l.backend);
      load_model(l.folder, beam->session(), *l.model);
      beam->refresh();
      preparing += seconds_since(start);
    }
    std::vector<size_t> order;  // without those that are empty, behind which nothing comes
    for (size_t i = 0; i < sources.size(); ++i)
      if (!sources[i].source.ids.empty()) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return sources[a].source.ids.size() < sources[b].source.ids.size();
    });
    std::vector<std::string> found(sources.size());
    for (size_t first = 0; first < order.size(); first += at_once) {
      const size_t count = std::min(at_once, order.size() - first);
      std::vector<BeamSource> batch;
      for (size_t i = 0; i < count; ++i)
        batch.push_back(std::move(sources[order[first + i]].source));
      const auto best = beam->beam().search(batch, l.target());
      for (size_t i = 0; i < count; ++i) {
        const size_t at = order[first + i];
        found[at] = l.shown(best[i].tokens, sources[at].rare);
        tokens += std::ssize(best[i].tokens);
      }
      texts += static_cast<int64_t>(count);
      if (seconds_since(said) > 5) {
        said = now_ns();
        std::fprintf(stderr, "%s texts, %.1f a second\n", with_commas(texts).c_str(),
                     static_cast<double>(texts) / seconds_since(begin));
      }
    }
    for (const std::string& text : found)
      put((arguments.input.empty() ? text : on_one_line(text)) + "\n");
  }
  const double seconds = seconds_since(begin) - preparing;
  std::fprintf(
      stderr, "%s\n",
      fmt::format("{} texts of {} tokens in {}: {:.1f} texts, {:.0f} tok/s, after {} to prepare; "
                  "beam {}; {} memory{}",
                  with_commas(texts), with_commas(tokens), human_seconds(seconds),
                  static_cast<double>(texts) / seconds, static_cast<double>(tokens) / seconds,
                  human_seconds(preparing), l.beam.beam,
                  human_bytes(beam ? beam->session().allocated_bytes() : 0), l.cut_text(cut))
          .c_str());
}

}  // namespace

int generate_command(const GenerateArguments& arguments) {
  const auto given = [](const std::string& text) { return text.empty() ? 0 : 1; };
  const int prompts_given =
      given(arguments.prompt) + given(arguments.prompt_ids) + given(arguments.input);
  if (prompts_given != 1)
    throw usage("the prompt is missing",
                "one of --prompt TEXT, --prompt-ids 1,2,3 and --input FILE",
                prompts_given == 0 ? "none, or an empty one" : "several", "--prompt \"the \"");
  if (!arguments.input.empty() && !fs::is_regular_file(arguments.input))
    throw usage("there is nothing to read prompts from", "a file with a prompt on each line",
                arguments.input, "--input FILE");
  if (!arguments.field.empty() && arguments.input.empty())
    throw usage("a prompt of the command line has no fields", "--field beside --input FILE",
                "--field " + arguments.field, "leave --field out");
  Loaded loaded = load(arguments);
  if (loaded.model->takes().states) {
    arguments.given.refuse(
        {"--ids", "--beam", "--length-penalty", "--no-repeat-ngram", "--min-tokens", "--max-tokens",
         "--temperature", "--top-k", "--top-p", "--seed"},
        "predicting paths", "leave it out");
    if (arguments.input.empty())
      throw usage("this model goes on from paths, not from text", "--input FILE with paths",
                  "a prompt", "--input FILE: a table of frame, agent, x and y");
    if (!arguments.field.empty())
      throw usage("paths have no named fields", "a table of frame, agent, x and y",
                  "--field " + arguments.field, "leave --field out");
    predict_paths(*loaded.model, loaded.folder, arguments.input, arguments.class_column,
                  arguments.at_once > 0 ? arguments.at_once : sources_at_once(*loaded.backend),
                  loaded.passes, *loaded.backend);
    return 0;
  }
  if (loaded.pairs() && loaded.tokenizer->end_id() < 0)
    throw usage("the tokenizer has no token that ends a text", "one that has", "none",
                "the tokenizer that the model was trained with");
  loaded.beam = arguments.beam;
  loaded.beam.beam = settled_beam(arguments.given, loaded.beam.beam, *loaded.model);
  check_options(loaded);
  Prompts prompts(loaded);
  if (loaded.beam.beam == 0)
    draw(loaded, prompts);
  else
    search(loaded, prompts);
  return 0;
}

}  // namespace millrace
