// Examples for the JSON files of a model's folder: the manifest and the trainer's state of a
// checkpoint, config.json, and the index of weights in several files.
#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "tests/fuzz/fuzz.h"

namespace millrace::fuzz {
namespace {

// `base` with `from`, which it has, as `to`.
std::string changed(std::string base, std::string_view from, std::string_view to) {
  const size_t at = base.find(from);
  MR_CHECK(at != base.npos, "the example has no {}", from);
  return base.replace(at, from.size(), to);
}

const std::string kFolderDigest = "0123456789abcdef0123456789abcdef";
const std::string kManifest = R"(  "format": 1,
  "version": "0.1",
  "step": 12,
  "plan": "55aa",
  "metric": {
    "name": "eval/loss",
    "value": 1.5
  },
  "files": {
    "model.safetensors": {
      "bytes": 123,
      "xxh3": "0123456789abcdef0123456789abcdef"
    }
  }
}
)";
std::string manifest(std::string_view from, std::string_view to) {
  return signed_manifest(changed(kManifest, from, to));
}

const std::string kState =
    R"({"max_steps":10,"epoch":0.5,"global_step":3,"samples_seen":6,"num_input_tokens_seen":96,"num_input_places":99,)"
    R"("first_loss":3.5,"last_loss":3.25,"window_loss":0.0,"window_steps":0,"epoch_loss":9.75,)"
    R"("epoch_steps":3,"evaluated_step":-1,"sampled_step":-1,"evaluations":0,)"
    R"("metric_for_best_model":"","has_best":false,)"
    R"("best_metric":0.0,"best_global_step":0,"evaluations_without_gain":0,"last_metric":0.0,)"
    R"("skipped_updates":0,"skipped_in_a_row":0,"rollbacks":0,"recent_losses":[3.5,3.25],)"
    R"("spikes_in_a_row":0,"train_runtime":1.25,"metrics_bytes":512,"data_digest":"ab",)"
    R"("choices":"m=1;n=2"})";
std::string state(std::string_view from, std::string_view to) { return changed(kState, from, to); }

const std::string kGpt2 =
    R"({"model_type":"gpt2","vocab_size":65,"n_positions":16,"n_embd":32,"n_layer":2,"n_head":2})";
const std::string kLlama =
    R"({"model_type":"llama","vocab_size":65,"hidden_size":32,"intermediate_size":64,)"
    R"("num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2})";
const std::string kOwn =
    R"({"model_type":"millrace","millrace":{"family":"gpt","max_length":16,"model":{"d_model":32,)"
    R"("num_layers":2,"num_heads":2,"vocab_size":65,"positions":"rotary","norm":"layer_norm"}}})";
// The config with a field more.
std::string plus(const std::string& config, std::string_view field) {
  return "{" + std::string(field) + "," + config.substr(1);
}

}  // namespace

std::string signed_manifest(std::string_view rest) {
  return "{\n  \"checksum\": \"" + digest_of(rest).xxh3 + "\",\n" + std::string(rest);
}

// NOLINTNEXTLINE(readability-function-size): a list
std::vector<Example> manifest_examples() {
  const std::string whole = signed_manifest(kManifest);
  const std::string entry = R"({"bytes":1,"xxh3":")" + kFolderDigest + R"("})";
  std::string many = "\"a\": " + entry;
  for (int i = 0; i < 500; ++i) many += ",\"f" + std::to_string(i) + "\":" + entry;
  return {
      accepted(whole),
      accepted(manifest("{\n    \"name\": \"eval/loss\",\n    \"value\": 1.5\n  }", "null")),
      accepted(manifest("1.5", "-1e308")),
      accepted(manifest("1.5", "7")),
      accepted(manifest("1.5", "-0.0")),
      accepted(manifest("1.5", "18446744073709551615")),
      accepted(manifest("123", "0")),
      accepted(manifest("123", "1152921504606846976")),
      accepted(manifest("12,", "0,")),
      accepted(manifest("\"55aa\"", "\"\"")),
      accepted(manifest("\"0.1\"", R"("\u00e9\n\ud83d\ude00")")),
      accepted(manifest("\"format\": 1", "\"format\":1,\"note\":[1,2]")),
      accepted(manifest("model.safetensors", "A-b_9.x")),
      accepted(manifest("model.safetensors", std::string(255, 'n'))),
      accepted(manifest("\"model.safetensors\": {", "\"a\":" + entry + ",\"model\": {")),
      accepted(manifest("\"model.safetensors\": {", many + ",\"model\": {")),
      accepted(manifest("}\n}\n", "}\n}")),
      // the checksum
      refused("", {"not a valid checkpoint manifest", "manifest.json", "in the first lines"}),
      refused("{}", {"in the first lines"}),
      refused(whole.substr(0, 40), {"in the first lines"}),
      refused(" " + whole, {"in the first lines"}),
      refused(changed(whole, "\",\n", "\", "), {"in the first lines"}),
      refused("\xEF\xBB\xBF" + whole, {"in the first lines"}),
      refused(changed(whole, "12,", "13,"), {"`checksum`", "by what the file holds"}),
      refused(whole + " ", {"by what the file holds"}),
      refused(whole.substr(0, whole.size() - 1), {"by what the file holds"}),
      refused(whole.substr(0, 53), {"by what the file holds"}),
      refused(std::string((1 << 20) + 1, 'x'), {"at most 1 MiB"}),
      // not JSON behind it
      refused(signed_manifest(""), {"expected: JSON"}),
      refused(signed_manifest(kManifest + "}"), {"expected: JSON"}),
      refused(signed_manifest("\xFF"), {"expected: JSON"}),
      refused(signed_manifest("\"a\xC3\": 1}"), {"expected: JSON"}),
      refused(manifest("1.5", "1e309"), {"expected: JSON"}),
      refused(manifest("12,", "012,"), {"expected: JSON"}),
      refused(signed_manifest("\"a\":" + repeated("[", 5000)), {"at most four levels"}),
      refused(signed_manifest("\"a\":[[[[[[]]]]]]}"), {"at most four levels"}),
      // fields
      refused(signed_manifest("}"), {"`format`", "expected: a value", "nothing"}),
      refused(manifest("\"format\": 1", "\"format\": 2"), {"another format", "2 (newer)"}),
      refused(manifest("\"format\": 1", "\"format\": 0"), {"another format", "expected: 1"}),
      refused(manifest("\"format\": 1", "\"format\": 1.0"), {"`format`", "a whole number"}),
      refused(manifest("\"format\": 1", "\"format\": \"1\""), {"a whole number"}),
      refused(manifest("\"format\": 1", "\"format\": 18446744073709551615"), {"a whole number"}),
      refused(manifest("\"version\"", "\"versiom\""), {"`version`", "nothing"}),
      refused(manifest("\"0.1\"", "0.1"), {"`version`", "expected: a text"}),
      refused(manifest("12,", "-1,"), {"`step`", "a whole number"}),
      refused(manifest("12,", "1152921504606846977,"), {"`step`", "a whole number"}),
      refused(manifest("12,", "9223372036854775808,"), {"`step`", "a whole number"}),
      refused(manifest("12,", "null,"), {"`step`", "a whole number"}),
      refused(manifest("\"55aa\"", "[]"), {"`plan`", "expected: a text"}),
      refused(manifest("\"metric\"", "\"meter\""), {"`metric`", "nothing"}),
      refused(manifest("\"metric\": {", "\"metric\": 1, \"m\": {"), {"a name and a value"}),
      refused(manifest("\"name\"", "\"nam\""), {"`name`", "nothing"}),
      refused(manifest("1.5", "\"nan\""), {"`metric.value`", "a finite number"}),
      refused(manifest("1.5", "null"), {"`metric.value`", "a finite number"}),
      refused(manifest("\"files\"", "\"file\""), {"`files`", "nothing"}),
      refused(manifest("\"files\": {", "\"files\": [], \"f\": {"), {"names with sizes"}),
      // names that lead elsewhere
      refused(manifest("model.safetensors", "../a"), {"plain file names", "`../a`"}),
      refused(manifest("model.safetensors", "/etc/passwd"), {"plain file names"}),
      refused(manifest("model.safetensors", ".hidden"), {"plain file names"}),
      refused(manifest("model.safetensors", ""), {"plain file names"}),
      refused(manifest("model.safetensors", "a b"), {"plain file names"}),
      refused(manifest("model.safetensors", "a\\u0000b"), {"plain file names", "`a?b`"}),
      refused(manifest("model.safetensors", "\\u001b[31m"), {"plain file names"}),
      refused(manifest("model.safetensors", "manifest.json"), {"plain file names"}),
      refused(manifest("model.safetensors", std::string(256, 'n')), {"plain file names"}),
      refused(manifest("\"files\": {", "\"files\": {\"a\": 1,"), {"a size and a checksum", "`a`"}),
      refused(manifest("\"bytes\"", "\"byte\""), {"`bytes`", "nothing"}),
      refused(manifest("123", "-1"), {"`bytes`", "a whole number"}),
      refused(manifest("123", "1e3"), {"`bytes`", "a whole number"}),
      refused(manifest("\"xxh3\"", "\"md5\""), {"`xxh3`", "nothing"}),
      refused(manifest("0123456789abcdef\"", "0123456789ABCDEF\""), {"expected: a checksum"}),
      refused(manifest("0123456789abcdef\"", "0123456789abcde\""), {"expected: a checksum"}),
  };
}

std::vector<Example> trainer_state_examples() {
  std::string losses = "0.5";
  for (int i = 0; i < 200; ++i) losses += ",0.25";
  return {
      accepted(kState),
      accepted("\n\t " + kState + "\r\n"),
      accepted(state("3.25,\"window", "\"nan\",\"window")),
      accepted(state("3.25,\"window", "\"inf\",\"window")),
      accepted(state("3.25,\"window", "\"-inf\",\"window")),
      accepted(state("3.25,\"window", "-0.0,\"window")),
      accepted(state("3.25,\"window", "18446744073709551615,\"window")),
      accepted(state("3.25,\"window", "4.9e-324,\"window")),
      accepted(state("[3.5,3.25]", "[]")),
      accepted(state("[3.5,3.25]", "[\"nan\",1,\"inf\",-2.5e-300]")),
      accepted(state("[3.5,3.25]", "[" + losses + "]")),
      accepted(state("\"has_best\":false", "\"has_best\":true")),
      accepted(state("\"evaluated_step\":-1", "\"evaluated_step\":3")),
      accepted(state("\"global_step\":3", "\"global_step\":1152921504606846976")),
      accepted(state("\"m=1;n=2\"", R"("\u00e9\u0000\n\ud83d\ude00")")),
      accepted(state("\"epoch\":0.5", "\"epoch\":[[1],{}]")),  // for other programs, not read
      accepted(state("{\"max_steps\":10,", "{")),
      // not JSON
      refused("", {"the state of the run cannot be read", "trainer_state.json", "expected: JSON"}),
      refused("{", {"expected: JSON"}),
      refused(kState + "{}", {"expected: JSON"}),
      refused(kState.substr(0, 200), {"expected: JSON"}),
      refused(state("\"ab\"", "\"\xFF\""), {"expected: JSON"}),
      refused(state("3.25,\"window", "nan,\"window"), {"expected: JSON"}),
      refused(state("3.25,\"window", "1e309,\"window"), {"expected: JSON"}),
      refused(repeated("[", 100000), {"at most three levels"}),
      refused(state("0.5", "[[[[1]]]]"), {"at most three levels"}),
      refused("[]", {"expected: an object", "`[]`"}),
      refused("null", {"expected: an object"}),
      refused("\"" + repeated("x", 5000) + "\"", {"expected: an object"}),
      // fields
      refused("{}", {"`global_step`", "expected: a value", "nothing"}),
      refused(state("\"choices\"", "\"choice\""), {"`choices`", "nothing"}),
      refused(state("\"global_step\":3", "\"global_step\":-1"), {"`global_step`", "a count"}),
      refused(state("\"global_step\":3", "\"global_step\":3.0"), {"`global_step`", "a count"}),
      refused(state("\"global_step\":3", "\"global_step\":\"3\""), {"a count", "`\"3\"`"}),
      refused(state("\"samples_seen\":6", "\"samples_seen\":null"), {"`samples_seen`", "a count"}),
      refused(state("\"samples_seen\":6", "\"samples_seen\":1152921504606846977"), {"a count"}),
      refused(state("\"samples_seen\":6", "\"samples_seen\":9223372036854775808"), {"a count"}),
      refused(state("\"evaluated_step\":-1", "\"evaluated_step\":-2"), {"`evaluated_step`"}),
      refused(state("\"evaluated_step\":-1", "\"evaluated_step\":18446744073709551615"),
              {"`evaluated_step`", "a count"}),
      refused(state("\"metrics_bytes\":512", "\"metrics_bytes\":-1"), {"`metrics_bytes`"}),
      refused(state("\"has_best\":false", "\"has_best\":0"), {"`has_best`", "true or false"}),
      refused(state("\"has_best\":false", "\"has_best\":\"no\""), {"true or false"}),
      refused(state("3.25,\"window", "\"NaN\",\"window"), {"`last_loss`", "a number"}),
      refused(state("3.25,\"window", "[3],\"window"), {"`last_loss`", "a number"}),
      refused(state("3.25,\"window", "true,\"window"), {"`last_loss`", "a number"}),
      refused(state("[3.5,3.25]", "3.5"), {"`recent_losses`", "a list of numbers"}),
      refused(state("[3.5,3.25]", "{}"), {"`recent_losses`", "a list of numbers"}),
      refused(state("[3.5,3.25]", "[3.5,null]"), {"`recent_losses`", "a number"}),
      refused(state("[3.5,3.25]", "[[]]"), {"`recent_losses`", "a number"}),
      refused(state("\"ab\"", "7"), {"`data_digest`", "a text"}),
      refused(state("\"ab\"", "\"\\u001b[2J\",\"choices\":[1],\"x\":\""), {"expected: JSON"}),
      refused(state("\"m=1;n=2\"", "{\"m\":\"\\u001b[2J\"}"), {"`choices`", "a text"}),
  };
}

std::vector<Example> model_config_examples() {
  return {
      accepted(kGpt2),
      accepted(plus(kGpt2, R"("n_inner":100,"activation_function":"relu")")),
      accepted(plus(kGpt2, R"("n_inner":null,"activation_function":"gelu_pytorch_tanh")")),
      accepted(plus(kGpt2, R"("activation_function":"silu","layer_norm_epsilon":1e-12)")),
      accepted(plus(kGpt2, R"("tie_word_embeddings":false,"scale_attn_weights":true)")),
      accepted(plus(kGpt2, R"("resid_pdrop":0.25,"embd_pdrop":0.25,"attn_pdrop":0.25)")),
      accepted(plus(kGpt2, R"("resid_pdrop":0,"other":{"a":[1,{"b":null}]})")),
      accepted(kLlama),
      accepted(changed(kLlama, ",\"num_key_value_heads\":2", "")),
      accepted(plus(kLlama, R"("rope_theta":500000.0,"max_position_embeddings":4096)")),
      accepted(plus(kLlama, R"("rope_parameters":{"rope_type":"default","rope_theta":5000})")),
      accepted(plus(kLlama, R"("rope_scaling":null,"head_dim":8,"rms_norm_eps":1)")),
      accepted(plus(kLlama, R"("attention_bias":true,"mlp_bias":true)")),
      accepted(plus(kLlama, R"("attention_bias":true)")),
      accepted(plus(kLlama, R"("mlp_bias":true)")),
      accepted(plus(kLlama, R"("head_dim":16)")),
      accepted(plus(kLlama, R"("tie_word_embeddings":true,"hidden_act":"silu")")),
      accepted(kOwn),
      accepted(changed(kOwn, "\"norm\":\"layer_norm\"", "\"norm\":\"rms_norm\",\"bias\":false")),
      accepted(changed(kOwn, "\"rotary\"", "\"learned\",\"dropout\":0.1")),  // GPT-2 after all
      accepted(changed(kOwn, "\"layer_norm\"", "\"rms_norm\",\"activation\":\"swiglu\"")),
      accepted(changed(kOwn, "\"layer_norm\"", "\"rms_norm\",\"rope_theta\":1000000000000")),
      // not a config
      refused("", {"not the config of a model", "config.json", "expected: JSON"}),
      refused("{\"model_type\":\"gpt2\"", {"expected: JSON"}),
      refused("{\"model_type\":\"gp\xFFt2\"}", {"expected: JSON"}),
      refused("[]", {"a JSON object", "array"}),
      refused("7", {"a JSON object", "number"}),
      refused("\"gpt2\"", {"a JSON object"}),
      refused(repeated("[", 60), {"at most 50 levels"}),
      refused("{\"a\":" + repeated("{\"a\":", 100) + "1" + repeated("}", 101), {"50 levels"}),
      refused(std::string((1 << 20) + 1, ' '), {"at most 1048576 bytes"}),
      // another model
      refused("{}", {"`model_type`", "gpt2 or llama", "nothing there"}),
      refused(R"({"model_type":null})", {"`model_type`", "nothing there"}),
      refused(R"({"model_type":"mamba"})", {"gpt2 or llama", "mamba"}),
      refused(R"({"model_type":7})", {"`model_type`", "a text"}),
      refused("{\"model_type\":\"\\u001b[31m" + repeated("x", 3000) + "\"}", {"`model_type`"}),
      // sizes
      refused(R"({"model_type":"gpt2"})", {"`vocab_size`", "nothing there"}),
      refused(changed(kGpt2, "65", "1"), {"`vocab_size`", "from 2 to 16777216", "`1`"}),
      refused(changed(kGpt2, "65", "65.0"), {"`vocab_size`", "an integer"}),
      refused(changed(kGpt2, "65", "18446744073709551615"), {"`vocab_size`", "an integer"}),
      refused(changed(kGpt2, "65", "-9223372036854775808"), {"`vocab_size`", "an integer"}),
      refused(changed(kGpt2, "\"n_head\":2", "\"n_head\":0"), {"`n_head`", "from 1 to 4096"}),
      refused(changed(kGpt2, "\"n_head\":2", "\"n_head\":5"), {"`n_head`", "a divisor of"}),
      refused(changed(kGpt2, "\"n_layer\":2", "\"n_layer\":1025"), {"`n_layer`"}),
      refused(changed(kGpt2, "\"n_positions\":16", "\"n_positions\":1048577"), {"`n_positions`"}),
      refused(plus(kGpt2, R"("n_inner":0)"), {"`n_inner`"}),
      refused(changed(kLlama, "\"num_attention_heads\":4", "\"num_attention_heads\":32"),
              {"`num_attention_heads`", "an even width"}),
      refused(changed(kLlama, "\"num_key_value_heads\":2", "\"num_key_value_heads\":3"),
              {"`num_key_value_heads`", "a divisor of 4 heads"}),
      refused(plus(kLlama, R"("head_dim":15)"), {"`head_dim`", "an even width", "`15`"}),
      // what it cannot do
      refused(plus(kGpt2, R"("layer_norm_epsilon":0)"), {"`layer_norm_epsilon`", "above 0"}),
      refused(plus(kGpt2, R"("activation_function":"mish")"), {"gelu_new, gelu, relu"}),
      refused(plus(kGpt2, R"("resid_pdrop":1)"), {"`resid_pdrop`"}),
      refused(plus(kGpt2, R"("resid_pdrop":"a lot")"), {"`resid_pdrop`"}),
      refused(plus(kGpt2, R"("scale_attn_weights":false)"), {"`scale_attn_weights`"}),
      refused(plus(kGpt2, R"("add_cross_attention":1)"), {"`add_cross_attention`", "true or"}),
      refused(plus(kGpt2, R"("quantization_config":{})"), {"plain weights"}),
      refused(plus(kLlama, R"("hidden_act":"gelu")"), {"`hidden_act`", "silu"}),
      refused(plus(kLlama, R"("mlp_bias":"no")"), {"`mlp_bias`", "true or false"}),
      refused(plus(kLlama, R"("sliding_window":128)"), {"`sliding_window`", "null"}),
      refused(plus(kLlama, R"("rope_scaling":{"rope_type":"yarn"})"),
              {"`rope_scaling.rope_type`", "default"}),
      refused(plus(kLlama, R"("rope_parameters":[])"), {"`rope_parameters`", "an object"}),
      refused(plus(kLlama, R"("rope_theta":1e13)"), {"`rope_theta`", "at most"}),
      refused(plus(kLlama, R"("rope_parameters":{"partial_rotary_factor":0.5})"),
              {"`rope_parameters.partial_rotary_factor`"}),
      // our own, damaged
      refused(R"({"model_type":"millrace"})", {"`millrace`", "an object"}),
      refused(R"({"model_type":"millrace","millrace":{"family":"rnn"}})", {"`model_type`"}),
      refused(R"({"model_type":"millrace","millrace":{"family":"gpt"}})", {"`millrace.model`"}),
      refused(changed(kOwn, "\"d_model\"", "\"d_modle\""), {"config.json", "d_modle"}),
      refused(changed(kOwn, "\"d_model\":32", "\"d_model\":\"wide\""), {"config.json", "d_model"}),
      refused(changed(kOwn, "\"num_heads\":2", "\"num_heads\":5"), {"config.json", "num_heads"}),
      refused(changed(kOwn, "\"max_length\":16,", ""), {"`millrace.max_length`"}),
      refused(changed(kOwn, "\"layer_norm\"", "\"layer_norm\",\"rope_theta\":1e13"),
              {"config.json", "rope_theta"}),
      refused(changed(kOwn, "\"rotary\"", "\"\\u001b]0;x\\u0007\""), {"config.json", "positions"}),
  };
}

std::vector<Example> weight_index_examples() {
  auto map = [](std::string_view entries) {
    return "{\"metadata\":{\"total_size\":12},\"weight_map\":{" + std::string(entries) + "}}";
  };
  auto file = [&](std::string_view name) { return map("\"w\":\"" + std::string(name) + "\""); };
  std::string many = "\"first\":\"a.safetensors\"";
  for (int i = 0; i < 500; ++i) many += fmt::format(",\"t{}\":\"{}.safetensors\"", i, i % 7);
  return {
      accepted(file("model-00001-of-00002.safetensors")),
      accepted(map(R"("a":"x.safetensors","b":"x.safetensors","c":"y.safetensors")")),
      accepted(map("")),
      accepted(map(many)),
      accepted("{\"weight_map\":{}}"),
      accepted(" \n{\"weight_map\" :\t{ } }\r\n"),
      accepted("{\"weight_map\":{},\"metadata\":null,\"x\":[1,[2]]}"),
      accepted(file("a..b.safetensors")),
      accepted(file("a b.safetensors")),
      accepted(file("é€😀.safetensors")),
      accepted(file("\\u00e9.safetensors")),
      accepted(file("a\\\\b.safetensors")),
      accepted(file("~.safetensors")),
      accepted(map(R"("":"x.safetensors")")),
      accepted(map(R"("\u0000\n":"x.safetensors")")),
      // not JSON
      refused("", {"the index of the weights is damaged", "index.json", "expected: JSON"}),
      refused("{", {"expected: JSON"}),
      refused("{}{}", {"expected: JSON"}),
      refused("{\"weight_map\":{\"a\":\"x.safetensors\",}}", {"expected: JSON"}),
      refused(file("\xFF.safetensors"), {"expected: JSON"}),
      refused(file("\\ud800.safetensors"), {"expected: JSON"}),
      refused("{\"weight_map\":{}} // end", {"expected: JSON"}),
      refused("{'weight_map':{}}", {"expected: JSON"}),
      refused(repeated("[", 200), {"at most 20 levels"}),
      refused("{\"a\":" + repeated("[", 60000), {"at most 20 levels"}),
      // no map
      refused("[]", {"an object `weight_map`"}),
      refused("null", {"an object `weight_map`"}),
      refused("\"weight_map\"", {"an object `weight_map`"}),
      refused("{}", {"an object `weight_map`"}),
      refused("{\"weight_map\":null}", {"an object `weight_map`"}),
      refused("{\"weight_map\":[]}", {"an object `weight_map`"}),
      refused("{\"weight_map\":\"x.safetensors\"}", {"an object `weight_map`"}),
      refused("{\"weight_Map\":{}}", {"an object `weight_map`"}),
      // no name of a file
      refused(map("\"w\":1"), {"`weight_map`: `w`", "the name of a file", "number"}),
      refused(map("\"w\":null"), {"the name of a file", "null"}),
      refused(map("\"w\":[\"x.safetensors\"]"), {"the name of a file", "array"}),
      refused(map("\"w\\u001b[1m\":{}"), {"`weight_map`: `w?[1m`", "object"}),
      refused(map("\"" + repeated("w", 5000) + "\":0"), {"the name of a file"}),
      // names that lead elsewhere
      refused(file(""), {"in this folder", "``"}),
      refused(file("x"), {"a .safetensors file in this folder", "`x`"}),
      refused(file("x.bin"), {"in this folder"}),
      refused(file("x.safetensors.index.json"), {"in this folder"}),
      refused(file("x.SAFETENSORS"), {"in this folder"}),
      refused(file("../x.safetensors"), {"in this folder", "`../x.safetensors`"}),
      refused(file("/tmp/x.safetensors"), {"in this folder"}),
      refused(file("a\\/b.safetensors"), {"in this folder"}),
      refused(file("\\u002e\\u002e\\u002fx.safetensors"), {"in this folder"}),
      refused(file(".safetensors"), {"in this folder"}),
      refused(file("..safetensors"), {"in this folder"}),
      refused(file(".x.safetensors"), {"in this folder"}),
      refused(file("x\\u0000.safetensors"), {"in this folder", "`x?.safetensors`"}),
      refused(file("x\\n.safetensors"), {"in this folder", "`x?.safetensors`"}),
      refused(file("\\u001b[31m.safetensors"), {"in this folder"}),
      refused(file("\\u009b.safetensors"), {"in this folder"}),
  };
}

}  // namespace millrace::fuzz
