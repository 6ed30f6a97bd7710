// millrace generate: text from a trained model, to standard output as it is drawn.
#include <unistd.h>

#include <charconv>
#include <cstdio>

#include "cli/commands.h"
#include "cli/device.h"
#include "cli/model_folder.h"
#include "core/text.h"
#include "core/utf8_stream.h"
#include "io/quote.h"
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

void put(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw Error({.code = ErrorCode::failure,
                 .what = "standard output cannot be written",
                 .where = "standard output",
                 .remedy = "check where it goes"});
}

}  // namespace

int generate_command(const GenerateArguments& arguments) {
  if (arguments.prompt.empty() == arguments.prompt_ids.empty())
    throw usage("the prompt is missing", "one of --prompt TEXT and --prompt-ids 1,2,3",
                arguments.prompt.empty() ? "neither, or an empty one" : "both",
                "--prompt \"the \"");
  const GenerateOptions& options = arguments.options;
  check_device(arguments.device, "--device");
  const fs::path folder = find_model_folder(Settings().runs_folder, arguments.folder);
  const auto model = load_model_config(folder);
  if (!model->can_generate())
    throw Error({.code = ErrorCode::failure,
                 .what = "generation with a model of this family is to come",
                 .where = folder.string(),
                 .expected = "a family that writes text",
                 .got = "one that can be trained and evaluated",
                 .remedy = "`millrace eval`, or another model"});
  check_weights(folder, *model);
  std::unique_ptr<Tokenizer> tokenizer;
  if (arguments.prompt_ids.empty() || !arguments.ids) tokenizer = load_tokenizer(folder);
  std::vector<int32_t> prompt;
  if (arguments.prompt_ids.empty())
    tokenizer->encode(arguments.prompt, {"--prompt"}, prompt);
  else
    prompt = parse_ids(arguments.prompt_ids, model->vocab_size());
  int64_t allowed = model->vocab_size();
  if (tokenizer) allowed = std::min(allowed, tokenizer->vocab_size());
  for (int32_t id : prompt)
    if (id >= model->vocab_size())
      throw Error({.code = ErrorCode::failure,
                   .what = "the tokenizer has more tokens than the model",
                   .where = folder.string(),
                   .expected = fmt::format("tokens below {}", model->vocab_size()),
                   .got = std::to_string(id),
                   .remedy = "the tokenizer that the model was trained with"});

  const auto backend = open_device(arguments.device, {}, [](const std::string& text) {
    std::fprintf(stderr, "%s\n", text.c_str());
  });
  Settings settings;
  settings.precision = arguments.precision;
  settle_precision(settings, *backend, "--precision");
  // No more cache than the text can fill.
  const int64_t capacity = std::min(model->max_lengths().target,
                                    std::ssize(prompt) + std::max<int64_t>(1, options.max_tokens));
  const DecodePlans plans = make_decode_plans(*model, capacity, settings.pass_options(), *backend);
  const Plan* const both[] = {&plans.prefill, &plans.decode};
  const Plan refresh = make_refresh_plan(both, *backend);
  Session session(*backend, {&plans.prefill, &plans.decode, &refresh});
  load_model(folder, session, *model);
  session.run(2);

  Utf8Stream utf8;
  int64_t drawn = 0;
  const Generated g =
      generate(session, {0, 1, capacity}, allowed, std::move(prompt), options, [&](int32_t token) {
        ++drawn;
        if (tokenizer && token == tokenizer->end_id()) return false;
        put(arguments.ids ? fmt::format("{} ", token) : utf8.add(tokenizer->token_text(token)));
        return true;
      });
  // A line end behind ids; behind text only for a person, so that a file holds the text alone.
  put(arguments.ids ? "\n" : utf8.finish() + (isatty(STDOUT_FILENO) ? "\n" : ""));
  auto per_token = [](double seconds, int64_t tokens) {
    return tokens > 0 ? 1e3 * seconds / static_cast<double>(tokens) : 0.0;
  };
  const double seconds = g.prefill_seconds + g.decode_seconds;
  std::fprintf(
      stderr, "%s\n",
      fmt::format("generated {} tokens: {:.1f} tok/s; prompt {} tokens, {:.2f} ms each; then "
                  "{:.2f} ms per token; {} memory",
                  drawn, seconds > 0 ? static_cast<double>(drawn) / seconds : 0.0, g.prefilled,
                  per_token(g.prefill_seconds, g.prefilled), per_token(g.decode_seconds, g.decoded),
                  human_bytes(session.allocated_bytes()))
          .c_str());
  return 0;
}

}  // namespace millrace
