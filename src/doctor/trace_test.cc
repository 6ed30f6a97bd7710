#include "doctor/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace millrace {
namespace {

TEST(Trace, HasTheFieldsThatReadersAskFor) {
  Timeline t(8);
  const uint32_t host = t.lane("host"), compute = t.lane("com\"pute");
  t.add({5'000, 9'000, host, "run", "run", {}});
  t.add({5'500, 7'000, compute, "mat\\mul\n", "forward", "layers.0.mlp"});
  const auto trace = nlohmann::json::parse(trace_json(t, "a \"process\"", "a device"));
  EXPECT_EQ(trace.at("schemaVersion"), 1);
  EXPECT_EQ(trace.at("displayTimeUnit"), "ms");
  EXPECT_EQ(trace.at("baseTimeNanoseconds"), 5'000);
  EXPECT_EQ(trace.at("deviceProperties").at(0).at("name"), "a device");
  std::map<std::string, int> names;
  std::vector<nlohmann::json> spans;
  for (const auto& e : trace.at("traceEvents")) {
    for (const char* field : {"ph", "name", "pid", "tid", "ts"}) EXPECT_TRUE(e.contains(field));
    if (e.at("ph") == "M" && e.at("name") == "thread_name")
      names[e.at("args").at("name")] = e.at("tid");
    if (e.at("ph") == "X") spans.push_back(e);
  }
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("tid"), names.at("host"));
  EXPECT_EQ(spans[1].at("tid"), names.at("com\"pute"));
  EXPECT_EQ(spans[1].at("name"), "mat\\mul\n");
  EXPECT_EQ(spans[1].at("cat"), "forward");
  EXPECT_EQ(spans[1].at("args").at("scope"), "layers.0.mlp");
  EXPECT_DOUBLE_EQ(spans[1].at("ts"), 0.5);
  EXPECT_DOUBLE_EQ(spans[1].at("dur"), 1.5);
}

TEST(Trace, OfNothingIsStillATrace) {
  const Timeline nothing(0);
  EXPECT_EQ(nlohmann::json::parse(trace_json(nothing, "p", "d")).at("traceEvents").size(), 5u);
}

}  // namespace
}  // namespace millrace
