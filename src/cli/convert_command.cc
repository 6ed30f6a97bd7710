// millrace import and export: a model between Millrace and other programs. Both read any model
// folder and write one; what they write is staged beside its place and then put there, whole.
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/model_folder.h"
#include "cli/standard_output.h"
#include "core/half.h"
#include "core/text.h"
#include "data/gguf_tokenizer.h"
#include "data/tokenizer_folder.h"
#include "io/manifest.h"
#include "io/safetensors.h"
#include "model/tuning.h"
#include "train/model_weights.h"
#include "train/weights.h"

namespace millrace {
namespace {

// Matrices may be 16 bits; norms and biases are small, and other programs want them in full.
DType stored(const ConvertArguments& arguments, size_t rank) {
  if (rank < 2 || arguments.dtype == "f32") return DType::f32;
  return arguments.dtype == "f16" ? DType::f16 : DType::bf16;
}

std::string bytes_of(const std::vector<float>& values, DType dtype) {
  std::string bytes(values.size() * static_cast<size_t>(dtype_bytes(dtype)), '\0');
  if (dtype == DType::f32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = float_to_half(dtype, values[i]);
    std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}

// What a model needs beside its weights to read its data, as its folder has it.
struct Reading {
  std::unique_ptr<Tokenizer> tokenizer;        // null: there is none
  PromptFrame frame;                           // of prompts that are text
  std::optional<Normalisation> normalisation;  // of states
  TokenizerCompanions companions;              // as they stand beside the tokenizer
};

// Other programs read tokenizer.json alone: what stands around every prompt is said there, where
// there is a way to say it and the file does not say it already.
void write_tokenizer(const fs::path& to, const Reading& reading) {
  const Tokenizer& tokenizer = *reading.tokenizer;
  const auto& [before, behind] = reading.frame;
  TokenizerFile text = tokenizer.file();
  bool opens = !tokenizer.opening().empty();
  const int32_t start = !opens && before.size() == 1 ? before[0] : -1,
                end = behind.empty() ? -1 : behind[0];
  if (start >= 0 || end >= 0)
    if (auto framed = with_frame(text, tokenizer, start, end)) {
      text.bytes = std::move(*framed);
      opens = opens || start >= 0;
    }
  write_new_file(to / text.name, text.bytes);
  const PromptForm form{!before.empty(), !behind.empty()};
  for (const auto& [name, bytes] : companions_of(tokenizer, opens, form, reading.companions))
    write_new_file(to / name, bytes);
}

void write_folder(const fs::path& to, const ConvertArguments& arguments, const Model& model,
                  const ModelWeights& weights, const Reading& reading) {
  const auto parameters = model.parameters();
  std::vector<TensorToWrite> list;
  for (const Parameter& p : parameters)
    for (size_t part = 0; part < p.parts(); ++part) {
      const auto shape = external_shape(p, part);
      const DType dtype = stored(arguments, shape.size());
      list.push_back({p.external_name(part),
                      dtype == DType::f32   ? "F32"
                      : dtype == DType::f16 ? "F16"
                                            : "BF16",
                      shape,
                      {},
                      [&weights, &p, part, dtype](const TensorToWrite::Put& put) {
                        const std::string bytes =
                            bytes_of(external_part(p, part, weights.values(p, true)), dtype);
                        put(std::as_bytes(std::span(bytes)));
                      }});
    }
  OutputFile file(to / kWholeModel.weights, OutputFile::Mode::truncate);
  write_safetensors(file, list, {{"format", "pt"}});
  file.sync();
  file.close();
  auto config = nlohmann::ordered_json::parse(model.external_config());
  if (const Tokenizer* tokenizer = reading.tokenizer.get()) {
    if (tokenizer->start_id() >= 0) config["bos_token_id"] = tokenizer->start_id();
    if (const auto& ends = tokenizer->end_ids(); ends.size() == 1)
      config["eos_token_id"] = ends[0];
    else if (!ends.empty())
      config["eos_token_id"] = ends;
    write_tokenizer(to, reading);
  }
  if (reading.normalisation) write_new_file(to / kNormalisationFile, reading.normalisation->text());
  config["torch_dtype"] = arguments.dtype == "f32"   ? "float32"
                          : arguments.dtype == "f16" ? "float16"
                                                     : "bfloat16";
  write_new_file(to / kWholeModel.config, config.dump(2) + "\n");
  sync_folder(to);
}

// Queries and keys for rotary positions that turn neighbours: within a head of width K, rows d and
// d + K/2 become rows 2d and 2d + 1.
std::vector<float> with_neighbours(const std::vector<float>& values, int64_t rows, int64_t heads) {
  const auto width = static_cast<int64_t>(values.size()) / rows;
  const int64_t K = rows / heads, half = K / 2;
  std::vector<float> turned(values.size());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = row / K, d = row % K,
                  to = head * K + (d < half ? 2 * d : 2 * (d - half) + 1);
    std::copy_n(values.begin() + row * width, width, turned.begin() + to * width);
  }
  return turned;
}

// What a GGUF file says beside its tensors: known, or refused, before anything is made.
std::vector<GgufEntry> gguf_metadata(const fs::path& to, const ConvertArguments& arguments,
                                     const Model& model, const Reading& reading) {
  const auto form = model.gguf_form();
  if (!form)
    throw Error({.code = ErrorCode::config,
                 .what = "the model has no GGUF form",
                 .where = arguments.from,
                 .expected = "a GPT-2 shape with gelu_tanh, or a Llama shape",
                 .got = "another one",
                 .remedy = "--format hf"});
  std::vector<GgufEntry> metadata = form->metadata;
  metadata.push_back({"general.name", to.stem().string()});
  // Numbers of llama.cpp's file types.
  metadata.push_back({"general.file_type", arguments.dtype == "f32"   ? uint32_t{0}
                                           : arguments.dtype == "f16" ? uint32_t{1}
                                                                      : uint32_t{32}});
  if (reading.tokenizer) {
    auto more = gguf_tokenizer(*reading.tokenizer, model.vocab_size(), reading.frame.before);
    metadata.insert(metadata.end(), more.begin(), more.end());
    if (!reading.frame.behind.empty())
      std::fprintf(stderr,
                   "note     prompts of this model end with token %d, which llama.cpp does not put "
                   "there: it must be in the prompt\n",
                   reading.frame.behind[0]);
  } else {
    metadata.push_back({"tokenizer.ggml.model", std::string("none")});
  }
  return metadata;
}

void write_gguf_file(const fs::path& to, const ConvertArguments& arguments, const Model& model,
                     const ModelWeights& weights, const std::vector<GgufEntry>& metadata) {
  const auto form = model.gguf_form();
  const auto ours = model.parameters();
  std::vector<GgufTensor> tensors;
  for (size_t i = 0; i < ours.size(); ++i)
    for (size_t part = 0; part < form->table[i].parts(); ++part) {
      const Parameter& p = form->table[i];
      const auto shape = external_shape(p, part);
      const auto rotary = form->rotary_heads.find(p.external_name(part));
      const int64_t heads = rotary == form->rotary_heads.end() ? 0 : rotary->second;
      tensors.push_back({p.external_name(part), shape, stored(arguments, shape.size()),
                         [&weights, &own = ours[i], &p, part, heads, rows = shape[0]] {
                           auto values = external_part(p, part, weights.values(own, true));
                           return heads > 0 ? with_neighbours(values, rows, heads) : values;
                         }});
    }
  tensors.insert(tensors.end(), form->more.begin(), form->more.end());
  OutputFile file(to, OutputFile::Mode::truncate);
  write_gguf(file, metadata, tensors);
  file.sync();
  file.close();
}

// A tokenizer that does not fit the weights, or none that can be read: said, not hidden.
Reading reading_of(const fs::path& folder, const Model& model) {
  if (model.takes().states) return {nullptr, {}, load_normalisation(folder, model), {}};
  const auto file = tokenizer_file(folder);
  if (!file) {
    std::fprintf(stderr, "note     %s has no tokenizer: none is written\n", folder.c_str());
    return {};
  }
  auto tokenizer = load_tokenizer(folder, &model);
  PromptFrame frame = prompt_frame(folder, *tokenizer);
  return {std::move(tokenizer), std::move(frame), {}, tokenizer_companions(file->parent_path())};
}

}  // namespace

int convert_command(const ConvertArguments& arguments) {
  fs::path to = fs::path(arguments.to).lexically_normal();
  if (!to.has_filename()) to = to.parent_path();  // "OUT/"
  const bool gguf =
      arguments.format.empty() ? to.extension() == ".gguf" : arguments.format == "gguf";
  std::error_code error;
  const bool takes_place = !gguf && to != "." && fs::is_directory(to) && fs::is_empty(to, error);
  if (fs::exists(to) && !takes_place)
    throw Error(
        {.code = ErrorCode::config,
         .what = to.string() + " is there already",
         .where = "command line",
         .expected = gguf ? "a name that is free" : "a name that is free, or an empty folder",
         .got = fs::is_directory(to) ? "a folder" : "a file",
         .remedy = "name another, or remove it"});
  if (const fs::path parent = fs::absolute(to).parent_path(); !fs::is_directory(parent))
    throw Error({.code = ErrorCode::config,
                 .what = parent.string() + " is not a folder",
                 .where = "command line",
                 .expected = "a folder to write into",
                 .got = "nothing there",
                 .remedy = "make it first"});
  const fs::path from = find_initial_folder(Settings().runs_folder, arguments.from,
                                            "command line: " + arguments.from);
  if (fs::is_regular_file(from / kManifestName)) verify_folder(from);
  const auto model = load_model_config(from);
  if (const std::string note = check_folder(from, *model); !note.empty())
    std::fprintf(stderr, "note     %s\n", note.c_str());
  check_folder_values(from, *model);
  const Reading reading = reading_of(from, *model);
  const ModelWeights weights(from);
  const fs::path staged = fs::absolute(to).parent_path() / (".tmp-" + to.filename().string());
  const auto metadata =
      gguf ? gguf_metadata(to, arguments, *model, reading) : std::vector<GgufEntry>{};
  const fs::path made = gguf ? staged / to.filename() : staged;
  if (fs::exists(staged)) remove_folder(staged);
  create_folders(staged);
  try {
    if (gguf)
      write_gguf_file(made, arguments, *model, weights, metadata);
    else
      write_folder(made, arguments, *model, weights, reading);
    rename_path(made, to);
    if (gguf) remove_folder(staged);
  } catch (const Error&) {
    if (fs::exists(staged)) remove_folder(staged);
    throw;
  }
  sync_folder(fs::absolute(to).parent_path());
  int64_t parameters = 0;
  for (const Parameter& p : model->parameters()) parameters += p.shape.numel();
  put(fmt::format("{}: {} parameters in {}, from {}\n", to.string(), with_commas(parameters),
                  arguments.dtype, from.string()));
  return 0;
}

}  // namespace millrace
