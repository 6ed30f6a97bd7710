#include "doctor/trial.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace millrace {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

// As `millrace profile --json` prints it, in short.
nlohmann::ordered_json printed_report() {
  return {{"updates", 40},
          {"update_seconds", {{"mean", 0.6}, {"undisturbed", 0.5}, {"noise_share", 0.02}}},
          {"useful_tokens_per_second", 1000.0},
          {"mean_loss", 2.5},
          {"loss_error", 0.01},
          {"ceiling", {{"flops_per_second", 1e9}}},
          {"budget_seconds", {{"checkpoint", 0.1}}},
          {"peak_resident_bytes", 1000},
          {"folder", "runs/a"}};
}
Measured read_report(const std::string& text) {
  Measured m;
  m.seconds = 9;
  take_report(text, m);
  return m;
}

TEST(Report, IsRead) {
  const Measured m = read_report(printed_report().dump());
  ASSERT_TRUE(m.is_measured()) << m.reason;
  EXPECT_EQ(m.tokens_per_second, 1000);
  EXPECT_EQ(m.update_seconds, 0.5);
  EXPECT_EQ(m.noise, 0.02);
  EXPECT_EQ(m.loss, 2.5);
  EXPECT_EQ(m.loss_error, 0.01);
  EXPECT_EQ(m.updates, 40);
  EXPECT_EQ(m.seconds, 9);
  EXPECT_NEAR(m.more_seconds, 0.7, 1e-12);
  EXPECT_EQ(m.peak_bytes, 1000);
  auto j = printed_report();
  j["device_bytes"] = 5000;
  EXPECT_EQ(read_report(j.dump()).peak_bytes, 5000);
}

// A loss that is not finite, a noise that is not known.
TEST(Report, HasNoNumberWhereThereIsNone) {
  auto j = printed_report();
  j["mean_loss"] = j["loss_error"] = kNotANumber;
  j["update_seconds"]["noise_share"] = nullptr;
  const Measured m = read_report(j.dump());
  ASSERT_TRUE(m.is_measured()) << m.reason;
  EXPECT_TRUE(std::isnan(m.loss) && std::isnan(m.loss_error));
  EXPECT_FALSE(m.noise);
}

TEST(Report, ThatCannotBeReadIsAFailure) {
  auto without = printed_report(), other = printed_report();
  without.erase("mean_loss");
  other["update_seconds"]["undisturbed"] = nullptr;
  for (const std::string& text :
       {std::string(), std::string("["), printed_report().dump().substr(0, 90), std::string("3"),
        without.dump(), other.dump()}) {
    const Measured m = read_report(text);
    EXPECT_EQ(m.outcome, Measured::Outcome::failed) << text;
    EXPECT_TRUE(m.reason.starts_with("its report cannot be read: ")) << m.reason;
  }
}

// What is measured once for a machine is not what the next run of the same takes.
TEST(Report, TheCeilingIsNoPartOfWhatARunTakes) {
  auto j = printed_report();
  j["ceiling"]["seconds"] = 4.0;
  EXPECT_EQ(read_report(j.dump()).seconds, 5);
}

TEST(Gain, CountsWhereItIsBeyondItsNoise) {
  EXPECT_TRUE((Gain{1.8, 0.2}).is_faster());
  EXPECT_FALSE((Gain{1.2, 0.2}).is_faster());
  EXPECT_TRUE((Gain{0.8, 0.1}).is_slower());
  EXPECT_FALSE((Gain{0.95, 0.1}).is_slower());
  // Noise is a share of the ratio: beyond a half of it even three times as fast may be none.
  EXPECT_FALSE((Gain{4.61, 1.03}).is_faster());
  EXPECT_FALSE((Gain{3.0, 0.9}).is_faster());
  EXPECT_TRUE((Gain{3.0, 0.6}).is_faster());
  EXPECT_TRUE((Gain{0.5, 0.6}).is_slower());
  EXPECT_FALSE((Gain{0.5, 1.2}).is_slower());
}

TEST(Gain, IsUnclearWhereItMayBeNoneAndMayBeMuch) {
  EXPECT_TRUE((Gain{1.82, 0.94}).is_unclear());
  EXPECT_TRUE((Gain{0.5, 1.2}).is_unclear());
  EXPECT_FALSE((Gain{1.0, 0.03}).is_unclear());
  EXPECT_FALSE((Gain{1.8, 0.2}).is_unclear());
}

TEST(LossChange, IsHigherBeyondWhatUpdatesDifferBy) {
  auto of = [](double loss, double error) {
    Measured m;
    m.loss = loss;
    m.loss_error = error;
    return m;
  };
  EXPECT_FALSE(loss_change(of(2, 0.01), of(2.02, 0.01)).is_higher());
  EXPECT_TRUE(loss_change(of(2, 0.01), of(2.04, 0.01)).is_higher());
  EXPECT_FALSE(loss_change(of(2, 0.01), of(1.5, 0.01)).is_higher());
  EXPECT_FALSE(loss_change(of(2, 0), of(2.003, 0)).is_higher()) << "rounding";
  EXPECT_FALSE(loss_change(of(2, kNotANumber), of(2.003, kNotANumber)).is_higher());
  EXPECT_TRUE(loss_change(of(2, kNotANumber), of(2.1, kNotANumber)).is_higher());
  EXPECT_TRUE(loss_change(of(2, 0.01), of(kNotANumber, kNotANumber)).is_higher());
  EXPECT_FALSE(loss_change(of(kNotANumber, kNotANumber), of(2, 0.01)).is_higher());
  EXPECT_FALSE(loss_change(of(kNotANumber, kNotANumber), of(kNotANumber, kNotANumber)).is_higher());
}

// The noise of a run that does not know its own is that of the others.
TEST(Spread, IsOfWhatIsKnown) {
  Measured known, unknown;
  known.noise = 0.2;
  known.tokens_per_second = unknown.tokens_per_second = 1;
  EXPECT_EQ(spread_of({{unknown}, {known}, {unknown}}), 0.2);
  EXPECT_EQ(spread_of({{unknown}}), 0.01);
}

}  // namespace
}  // namespace millrace
