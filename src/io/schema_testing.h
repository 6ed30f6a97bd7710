// What the tests of the schema share: settings with one key of every kind.
#pragma once
#include <gtest/gtest.h>

#include "core/error.h"
#include "io/schema.h"

namespace millrace::schema_testing {

struct Settings {
  std::string name = "run";
  int64_t batch_size = 8;
  double learning_rate = 1e-3;
  double dropout = 0;
  bool resume = false;
  std::string optimizer = "adamw";
  int64_t vocab = -1;
  int64_t memory = 0;
  int64_t cache = -1;
  IntegerRows buckets = {{64, 128}, {256}};
  std::vector<std::string> files;
  int64_t seed = 0;
};

inline void declare(Schema* schema, Settings* settings) {
  schema->text("name", &settings->name).help("Name of the run.");
  schema->integer("training.batch_size", &settings->batch_size)
      .range(1, 4096)
      .help("Sequences per step.");
  schema->number("training.optimizer.lr", &settings->learning_rate)
      .above(0)
      .alias("training.learning_rate")
      .help("Peak rate.");
  schema->choice("training.optimizer.kind", &settings->optimizer, {"adamw", "sgd", "lion"});
  schema->boolean("training.resume", &settings->resume);
  schema->integer("model.vocab", &settings->vocab).min(1).allow_auto();
  schema->number("model.dropout", &settings->dropout).min(0).below(1);
  schema->bytes("memory.limit", &settings->memory).min(1024);
  schema->bytes("memory.cache", &settings->cache).allow_auto();
  schema->integer_rows("data.buckets", &settings->buckets).min(1);
  schema->text_list("data.files", &settings->files).help("Text files | folders.");
  schema->integer("training.seed", &settings->seed);
}

// The Error of the configuration that the action must throw.
template <typename Action>
ErrorFields config_error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::config);
    EXPECT_FALSE(error.fields().what.empty());
    EXPECT_FALSE(error.fields().where.empty());
    return error.fields();
  }
  ADD_FAILURE() << "no Error was thrown";
  return {};
}

}  // namespace millrace::schema_testing
