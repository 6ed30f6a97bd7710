// Every reader of bytes from outside, as a function from bytes to a verdict. The fuzzer
// (fuzz_main.cc) gives them millions of damaged inputs, the unit tests (corpus_test.cc) the
// hand-made ones and whatever the fuzzer has found.
#pragma once
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/rng.h"

namespace millrace::fuzz {

// What a reader said: the message of its Error, or nothing when it took the bytes.
struct Verdict {
  bool accepted = false;
  std::string message;
};

// A reader took the bytes and then something about them was wrong, or refused them badly. Not an
// Error, so that no reader can swallow it.
struct Broken : std::logic_error {
  using std::logic_error::logic_error;
};

// A hand-made or found input, and what must become of it.
struct Example {
  std::string bytes;
  std::vector<std::string> words;  // parts of the refusal's message; none: it must be accepted
};
inline Example accepted(std::string bytes) { return {std::move(bytes), {}}; }
inline Example refused(std::string bytes, std::vector<std::string> words) {
  return {std::move(bytes), std::move(words)};
}

struct Target {
  std::string name;
  // Reads the bytes; throws Broken, or whatever a reader lets through that it should not.
  Verdict (*run)(std::string_view bytes);
  std::vector<Example> (*examples)();
  std::vector<std::string> words;                // the format's own vocabulary, to be put in
  std::vector<std::string> good = {}, bad = {};  // what the fuzzer damages: accepted, refused
  // For formats where damage alone would not reach deep: a new valid input (or null), and whether
  // the text stands behind eight bytes of its length.
  std::string (*generate)(RandomStream& random) = nullptr;
  bool has_length = false;
  // Makes a checksum right again after the damage, or null: what is behind it is to be read.
  std::string (*repair)(const std::string& bytes) = nullptr;
};

const std::vector<Target>& targets();
const Target* find_target(std::string_view name);
// Readers in files of their own; words of numbers and of JSON come to theirs.
std::vector<Target> tokenizer_targets();
std::vector<Target> data_targets();   // of records
std::vector<Target> cache_targets();  // and of what the cache keeps of them
std::vector<Target> run_targets();    // what watch and compare read

std::vector<Example> safetensors_examples();
std::vector<Example> yaml_examples();
std::vector<Example> config_edit_examples();
std::vector<Example> command_examples();
std::vector<Example> tokenizer_json_examples();
std::vector<Example> utf8_examples();
std::vector<Example> byte_bpe_examples();
std::vector<Example> csv_examples();
std::vector<Example> json_lines_examples();
std::vector<Example> token_file_examples();
std::vector<Example> trajectory_table_examples();
std::vector<Example> class_table_examples();
std::vector<Example> ragged_safetensors_examples();
std::vector<Example> sentence_piece_model_examples();
std::vector<std::string> sentence_piece_words();  // fields and messages, to be put in
std::vector<Example> word_json_examples();
std::vector<Example> tokenizer_config_examples();
std::string byte_bpe_json();  // two special tokens end it: 258 and 259
std::vector<Example> token_store_header_examples();
std::vector<Example> value_store_header_examples();
std::vector<Example> normalisation_examples();
std::vector<Example> sequence_index_header_examples();
std::vector<Example> dataset_header_examples();
std::vector<Example> block_sums_examples();
std::vector<Example> sequence_entries_examples();
std::vector<Example> pair_index_header_examples();
std::vector<Example> pair_entries_examples();
std::vector<Example> manifest_examples();
std::vector<Example> trainer_state_examples();
std::vector<Example> model_config_examples();
std::vector<Example> weight_index_examples();

// Input number `index` of this seed: always the same bytes.
std::string make_input(const Target& target, uint64_t seed, uint64_t index);

// Length and text, as safetensors has it.
std::string with_length(std::string_view text, std::string_view rest);
std::string repeated(std::string_view unit, int count);
// A manifest of a checkpoint: the lines with the checksum, and what it covers.
std::string signed_manifest(std::string_view rest);

}  // namespace millrace::fuzz
