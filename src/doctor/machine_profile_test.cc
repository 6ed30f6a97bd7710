#include "doctor/machine_profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "core/error_testing.h"
#include "doctor/absent_device.h"

namespace millrace {
namespace {

MachineProfile example() {
  MachineProfile m{.device = "Some GPU",
                   .made_with = "driver 1",
                   .on_host = false,
                   .memory_bytes = int64_t{8} << 30,
                   .usual = Precision::bf16,
                   .precisions = {}};
  PrecisionProfile& p = m.precisions[Precision::bf16];
  p.ceiling = {1e14, 1e12};
  p.ceiling_date = p.ops_date = "2026-11-16";
  p.node_seconds = 2e-6;
  p.watts = 350;
  p.overhead_bytes = 500 << 20;
  p.ops["matmul"][size_class(1e-5)] = {10, 2e-4, 1e-4};
  p.ops["matmul"][size_class(1e-3)] = {5, 6e-3, 5e-3};
  m.precisions[Precision::fp32].ceiling = {1e13, 1e12, {{1e6, 5e12}}};
  return m;
}

TEST(MachineProfileTest, IsReadAsItWasWritten) {
  const MachineProfile m = example(), again = parse_machine_profile(m.text(), "a.json");
  EXPECT_EQ(m.text(), again.text());
  EXPECT_EQ(again.device, "Some GPU");
  EXPECT_EQ(again.usual, Precision::bf16);
  const PrecisionProfile* p = again.find(Precision::bf16);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->ops.at("matmul").size(), 2u);
  EXPECT_EQ(*p->watts, 350);
  EXPECT_FALSE(again.find(Precision::fp32)->watts);
  ASSERT_EQ(again.find(Precision::fp32)->ceiling.caches.size(), 1u);
  EXPECT_EQ(again.find(Precision::fp32)->ceiling.caches[0].capacity, 1e6);
  EXPECT_FALSE(again.find(Precision::fp16));
}

TEST(MachineProfileTest, WhatIsNoneIsRefusedWithItsPlace) {
  const std::string good = example().text();
  auto with = [&](const std::string& old, const std::string& now) {
    std::string text = good;
    const size_t at = text.find(old);
    EXPECT_NE(at, text.npos) << old;
    return text.replace(at, old.size(), now);
  };
  const std::pair<std::string, const char*> cases[] = {
      {"", "a JSON object"},
      {"[]", "an object"},
      {good.substr(0, good.size() / 2), "a JSON object"},
      {std::string(1000, '['), "a JSON object"},
      {with("millrace-machine-2", "millrace-machine-9"), "format"},
      {with("\"device\"", "\"divice\""), "device"},
      {with("\"Some GPU\"", "7"), "device"},
      {with("Some GPU", "\\u001b[2J"), "device"},
      {with("false", "0"), "on_host"},
      {with("8589934592", "-1"), "memory_bytes"},
      {with("\"bf16\"", "\"fp8\""), "precision"},
      {with("100000000000000.0", "0"), "ceiling"},
      {with("100000000000000.0", "1e300"), "flops_per_second"},
      {with("100000000000000.0", "\"fast\""), "flops_per_second"},
      {with("350.0", "-350"), "watts"},
      {with("\"nodes\": 10.0", "\"nodes\": 0"), "took time"},
      {with("\"watts\"", "\"whats\""), "no key but"},
  };
  for (const auto& [text, word] : cases) {
    SCOPED_TRACE(text.substr(0, 60));
    const ErrorFields e = error_of([&] { (void)parse_machine_profile(text, "some.json"); });
    EXPECT_EQ(e.code, ErrorCode::config);
    EXPECT_NE(e.where.find("some.json"), e.where.npos) << e.where;
    EXPECT_NE(e.expected.find(word), e.expected.npos) << e.expected;
    EXPECT_FALSE(e.got.empty() || e.remedy.empty());
  }
}

TEST(MachineProfileTest, AHigherCeilingForgetsWhatWasDisturbed) {
  PrecisionProfile p = *example().find(Precision::bf16);
  p.take_ceiling({0.9e14, 1.01e12});  // no news
  EXPECT_EQ(p.ceiling.flops, 1e14);
  EXPECT_EQ(p.ceiling.bytes, 1.01e12);
  EXPECT_FALSE(p.ops.empty());
  p.take_ceiling({2e14, 1e12});
  EXPECT_EQ(p.ceiling.flops, 2e14);
  EXPECT_TRUE(p.ops.empty());
}

TEST(MachineProfileTest, TimesFollowTheSizesThatWereSeen) {
  const OpTimes seen = example().find(Precision::bf16)->ops.at("matmul");
  EXPECT_NEAR(expected_seconds(seen, 1e-5, 1.5), 2e-5, 1e-11);
  EXPECT_NEAR(expected_seconds(seen, 1e-3, 1.5), 1.2e-3, 1e-9);
  // Beyond them as at the end; between them between.
  EXPECT_NEAR(expected_seconds(seen, 1e-6, 1.5), 2e-6, 1e-12);
  EXPECT_NEAR(expected_seconds(seen, 1, 1.5), 1.2, 1e-9);
  EXPECT_NEAR(expected_seconds(seen, 1e-4, 1.5), 1e-4 * std::sqrt(2 * 1.2), 1e-10);
  double before = 0;
  for (double limit = 1e-9; limit < 1; limit *= 1.5) {
    EXPECT_GT(expected_seconds(seen, limit, 1.5), before) << limit;
    before = expected_seconds(seen, limit, 1.5);
  }
  // Large nodes of an op that was seen only where starting one is all it costs.
  const OpTimes tiny{{0, {10, 1e-5, 1e-8}}};
  EXPECT_NEAR(expected_seconds(tiny, 1e-9, 1.5), 1e-6, 1e-12);
  EXPECT_NEAR(expected_seconds(tiny, 1e-3, 1.5), 1.5e-3 + 1e-6, 1e-8);
  // No work at all: what one took.
  EXPECT_NEAR(expected_seconds({{0, {4, 8e-6, 0}}}, 0, 1.5), 2e-6, 1e-12);
}

class MachineCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("millrace-machine-" + std::to_string(getpid()));
    if (const char* was = std::getenv("MILLRACE_CACHE")) before_ = was;
    setenv("MILLRACE_CACHE", folder_.c_str(), 1);
    MachineProfile kind;
    kind.device = "A GPU, of 8 GB";
    kind.made_with = "driver 1";
    backend_ = absent_device(kind);
    newer_ = absent_device({.device = kind.device, .made_with = "driver 2", .precisions = {}});
  }
  void TearDown() override {
    before_.empty() ? unsetenv("MILLRACE_CACHE") : setenv("MILLRACE_CACHE", before_.c_str(), 1);
    fs::remove_all(folder_);
  }
  fs::path folder_;
  std::string before_;
  std::unique_ptr<Backend> backend_, newer_;
};

TEST_F(MachineCacheTest, IsRememberedForThisKindAndTheseVersions) {
  EXPECT_EQ(machine_profile_path(*backend_), folder_ / "machines" / "a-gpu-of-8-gb.json");
  std::string note;
  MachineProfile m = recall_machine(*backend_, &note);
  EXPECT_TRUE(m.precisions.empty());
  EXPECT_EQ(note, "");
  m.precisions[Precision::fp32].take_ceiling({1e12, 1e11});
  remember_machine(m, *backend_);
  EXPECT_EQ(recall_machine(*backend_, &note).text(), m.text());
  EXPECT_EQ(note, "");
  EXPECT_TRUE(recall_machine(*newer_, &note).precisions.empty());
  EXPECT_NE(note.find("other versions"), note.npos);
}

// A device whose ceiling can be measured.
class Measured : public Backend {
 public:
  std::string name() const override { return "measured"; }
  Ceiling measure_ceiling(Precision) override {
    ++times;
    return {1e12, 1e11};
  }
  KernelChoice choose(const OpCard&, const OpSite&) override { return {}; }
  std::string choices() const override { return ""; }
  void pin_choices(const std::string&) override {}
  std::unique_ptr<Arena> allocate(int64_t) override { return nullptr; }
  std::unique_ptr<Executable> load(const Plan&, std::span<std::byte* const>) override {
    return nullptr;
  }
  void copy_in(std::byte*, std::span<const std::byte>) override {}
  void copy_out(std::span<std::byte>, const std::byte*) override {}
  int times = 0;
};

TEST_F(MachineCacheTest, TheCeilingIsMeasuredOnce) {
  Measured backend;
  const Ledger nothing;
  for (const Ledger* seen : {static_cast<const Ledger*>(nullptr), &nothing, &nothing}) {
    const MachineProfile machine = measured_machine(backend, Precision::fp32, seen);
    ASSERT_TRUE(machine.find(Precision::fp32));
    EXPECT_EQ(machine.find(Precision::fp32)->ceiling.flops, 1e12);
    EXPECT_EQ(backend.times, 1);
  }
  measured_machine(backend, Precision::tf32);
  EXPECT_EQ(backend.times, 2);
}

TEST_F(MachineCacheTest, ADamagedFileIsPassedOverWithANote) {
  MachineProfile m = recall_machine(*backend_);
  m.precisions[Precision::fp32].take_ceiling({1e12, 1e11});
  const std::string text = m.text();
  fs::create_directories(folder_ / "machines");
  for (const size_t cut : {size_t{0}, size_t{10}, text.size() - 5}) {
    write_file(machine_profile_path(*backend_), text.substr(0, cut));
    std::string note;
    EXPECT_TRUE(recall_machine(*backend_, &note).precisions.empty());
    EXPECT_NE(note.find("is not taken"), note.npos) << note;
  }
}

}  // namespace
}  // namespace millrace
