#include "data/trajectory_source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/rng.h"
#include "io/safetensors.h"

namespace millrace {
namespace {

using Paths = std::vector<Trajectory>;
using Values = std::vector<float>;

Trajectories parse(std::string_view text, bool skip_bad = false) {
  return parse_trajectory_table(text, "scenes/street.txt", skip_bad);
}

template <typename Read>
ErrorFields refusal_of(Read read) {
  try {
    read();
  } catch (const Error& e) {
    return e.fields();
  }
  return {};
}
ErrorFields refusal(std::string_view text) {
  return refusal_of([&] { parse(text); });
}

TEST(TrajectoryTableTest, RowsOfAnAgentAreItsPath) {
  const Trajectories t = parse("10 1 0.5 1\n10 2 5 6\n20 1 1.5 2\n20 2 7 8\n30 1 2.5 3\n");
  EXPECT_EQ(t.scene, "street");
  EXPECT_EQ(t.channels, 2);
  EXPECT_EQ(t.frame_step, 10);
  EXPECT_EQ(t.skipped, 0);
  EXPECT_EQ(t.paths, (Paths{{1, 10, 0, 3}, {2, 10, 3, 2}}));
  EXPECT_EQ(t.values, (Values{0.5f, 1, 1.5f, 2, 2.5f, 3, 5, 6, 7, 8}));
  const auto second = t.values_of(t.paths[1]);
  EXPECT_EQ(Values(second.begin(), second.end()), (Values{5, 6, 7, 8}));
}

TEST(TrajectoryTableTest, NumbersAndSeparatorsOfAllKinds) {
  const Trajectories t = parse(
      "# frame agent x y z\r\n\r\n1e3\t7.0 \t-1.5e-2  2 3 \r\n  1010.0, 7 ,4,5\t6\n"
      "\t# end\n 1020,7,1e-300,-0,4503599627370496.5");
  EXPECT_EQ(t.channels, 3);
  EXPECT_EQ(t.frame_step, 10);
  EXPECT_EQ(t.paths, (Paths{{7, 1000, 0, 3}}));
  EXPECT_EQ(t.values, (Values{-0.015f, 2, 3, 4, 5, 6, 0, 0, 0x1p52f}));
  // Whole numbers keep all their digits.
  EXPECT_EQ(parse("1600000000000000001 -4611686018427387903 1 2").paths,
            (Paths{{-4611686018427387903, 1600000000000000001, 0, 1}}));
}

TEST(TrajectoryTableTest, AFirstLineOfNames) {
  for (const char* names :
       {"frame,agent,x,y", "\n# a scene\n frame agent x y", "id\tof\twhat\tis"}) {
    const Trajectories t = parse(names + std::string("\r\n10,7,1,2\n20,7,3,4\n"));
    EXPECT_EQ(t.paths, (Paths{{7, 10, 0, 2}})) << names;
    EXPECT_EQ(t.values, (Values{1, 2, 3, 4})) << names;
  }
  EXPECT_TRUE(parse("frame,agent,x,y\n").paths.empty());
  // Only the first, and none whose first column has no name: that is an index.
  EXPECT_EQ(refusal("frame,agent,x,y\nframe,agent,x,y\n").where, "scenes/street.txt:2:1 (byte 16)");
  EXPECT_EQ(refusal("10,7,1,2\nframe,agent,x,y\n").where, "scenes/street.txt:2:1 (byte 9)");
  EXPECT_EQ(refusal(",frame,agent,x,y\n0,10,7,1,2\n").where, "scenes/street.txt:1:1 (byte 0)");
  EXPECT_EQ(refusal("nan 7 1 2\n").where, "scenes/street.txt:1:1 (byte 0)");
  EXPECT_EQ(parse_trajectory_table("frame,agent,x,y,kind\n10,7,1,2,0\n", "a.csv", false, {"5", 3})
                .classes,
            (std::vector<int32_t>{0}));
}

TEST(TrajectoryTableTest, NoRowsNoPaths) {
  for (const char* text : {"", "\n\n", "# nothing\n", " \t\r\n#"}) {
    const Trajectories t = parse(text);
    EXPECT_TRUE(t.paths.empty() && t.values.empty());
    EXPECT_EQ(t.channels, 0);
    EXPECT_EQ(t.frame_step, 0);
  }
}

TEST(TrajectoryTableTest, APathEndsWhereFramesAreLeftOut) {
  // Agent 1 is away in frame 40; agent 2 was also seen in between.
  const Trajectories t = parse(
      "10 1 0 0\n20 1 1 0\n30 1 2 0\n50 1 3 0\n60 1 4 0\n"
      "10 2 0 0\n15 2 0 0\n25 2 0 0\n36 2 0 0\n-5 3 0 0\n");
  EXPECT_EQ(t.frame_step, 10);
  EXPECT_EQ(t.paths,
            (Paths{{1, 10, 0, 3}, {1, 50, 3, 2}, {2, 10, 5, 3}, {2, 36, 8, 1}, {3, -5, 9, 1}}));
  // Of equally common steps the least.
  EXPECT_EQ(parse("0 1 0 0\n5 1 0 0\n0 2 0 0\n3 2 0 0\n").frame_step, 3);
  // No agent twice: no step.
  EXPECT_EQ(parse("0 1 0 0\n5 2 0 0\n").frame_step, 0);
}

TEST(TrajectoryTableTest, TheOrderOfRowsDoesNotMatter) {
  RandomStream random(3, RandomUse::test);
  std::vector<std::string> rows;
  for (int agent = 0; agent < 20; ++agent) {
    for (int frame = 0; frame < 400; frame += 10) {
      if (random.below(8) == 0) continue;
      rows.push_back(
          fmt::format("{} {} {:.3f} {:.3f}\n", frame, agent, random.uniform(), random.uniform()));
    }
  }
  const Trajectories once = parse(fmt::format("{}", fmt::join(rows, "")));
  EXPECT_EQ(once.frame_step, 10);
  EXPECT_GT(once.paths.size(), 40u);
  for (size_t i = rows.size() - 1; i > 0; --i) std::swap(rows[i], rows[random.below(i + 1)]);
  const Trajectories again = parse(fmt::format("{}", fmt::join(rows, "")));
  EXPECT_EQ(again.paths, once.paths);
  EXPECT_EQ(again.values, once.values);
  int64_t points = 0;
  for (const Trajectory& path : once.paths) {
    EXPECT_EQ(path.begin, points);
    points += path.length;
  }
  EXPECT_EQ(points, std::ssize(rows));
}

TEST(TrajectoryTableTest, BadRowsAreNamed) {
  struct Case {
    const char* row;
    const char* where;
    const char* got;
  };
  for (const Case& c : std::vector<Case>{
           {"x 1 0 0", "2:1 (byte 8)", "`x 1 0 0`"},
           {"1.5 1 0 0", "2:1 (byte 8)", "`1.5 1 0 0`"},
           {"nan 1 0 0", "2:1 (byte 8)", "`nan 1 0 0`"},
           {"1e999 1 0 0", "2:1 (byte 8)", "`1e999 1 0 0`"},
           {"1 4611686018427387904 0 0", "2:3 (byte 10)", "`4611686018427387904 0 0`"},
           {"1 99999999999999999999 0 0", "2:3 (byte 10)", "`99999999999999999999 0 0`"},
           {"1 9007199254740992.0 0 0", "2:3 (byte 10)", "`9007199254740992.0 0 0`"},
           {"1 a 0 0", "2:3 (byte 10)", "`a 0 0`"},
           {"1 1 nan 0", "2:5 (byte 12)", "`nan 0`"},
           {"1 1 0 inf", "2:7 (byte 14)", "`inf`"},
           {"1 1 0 -1e39", "2:7 (byte 14)", "`-1e39`"},
           {"1 1 0 1e999", "2:7 (byte 14)", "`1e999`"},
           {"1 1 0 0x1", "2:7 (byte 14)", "`0x1`"},
           {"1 1 0 +1", "2:7 (byte 14)", "`+1`"},
           {"1 1 0 1.0.0", "2:7 (byte 14)", "`1.0.0`"},
           {"1 1 0 1 # end", "2:9 (byte 16)", "`# end`"},
           {"1;1;0;0", "2:1 (byte 8)", "`1;1;0;0`"},
           {"1,,1,0,0", "2:3 (byte 10)", "`,1,0,0`"},
           {",1,1,0,0", "2:1 (byte 8)", "`,1,1,0,0`"},
           {"1,1,0,0,", "2:9 (byte 16)", "the end of the line"},
           {"1 é 0 0", "2:3 (byte 10)", "`é 0 0`"},
           {" 1 1 0", "2:2 (byte 9)", "3"},
           {"1", "2:1 (byte 8)", "1"},
           {"1 1 0 0 0", "2:1 (byte 8)", "5"},
       }) {
    const std::string text = std::string("0 0 0 0\n") + c.row + "\n9 9 9 9\n";
    const ErrorFields error = refusal(text);
    EXPECT_EQ(error.where, std::string("scenes/street.txt:") + c.where) << c.row;
    EXPECT_EQ(error.got, c.got) << c.row;
    const Trajectories rest = parse(text, true);
    EXPECT_EQ(rest.skipped, 1) << c.row;
    EXPECT_EQ(rest.paths, (Paths{{0, 0, 0, 1}, {9, 9, 1, 1}})) << c.row;
    EXPECT_EQ(rest.values, (Values{0, 0, 9, 9})) << c.row;
  }
  EXPECT_EQ(refusal("1 2 3\n").expected, "at least 4: frame, agent, x, y");
  EXPECT_EQ(parse("1 2 3\n1 2 3 4\n", true).paths.size(), 1u);
}

TEST(TrajectoryTableTest, AnAgentIsOnceInAFrame) {
  const char* text = "10 1 0 0\n20 1 1 1\n# between\n10.0 1.0 2 2\n10 1 3 3\n";
  const ErrorFields error = refusal(text);
  EXPECT_EQ(error.where, "scenes/street.txt:4");
  EXPECT_EQ(error.got, "agent 1 in frame 10 on line 1 and on line 4");
  const Trajectories rest = parse(text, true);
  EXPECT_EQ(rest.skipped, 2);
  EXPECT_EQ(rest.values, (Values{0, 0, 1, 1}));
}

// --- classes

Trajectories with_classes(std::string_view text, const std::string& column, bool skip_bad = false) {
  return parse_trajectory_table(text, "scenes/street.txt", skip_bad, {column, 3});
}

TEST(TrajectoryTableTest, AColumnOfClasses) {
  const std::vector<int32_t> classes = {2, -1, 0, 1};
  // Behind the numbers, before them, between them; rows in any order.
  const Trajectories t = with_classes("20 1 3 4 -5\n10 1 1 2 2\n10 2 5 6 0\n20 2 7 8 1.0\n", "5");
  EXPECT_EQ(t.channels, 2);
  EXPECT_EQ(t.values, (Values{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(t.classes, classes);
  const auto second = t.classes_of(t.paths[1]);
  EXPECT_EQ(std::vector<int32_t>(second.begin(), second.end()), (std::vector<int32_t>{0, 1}));
  for (const auto& [text, column] :
       {std::pair("10,1,2,1,2\n20,1, ,3,4\n10,2,0,5,6\n20,2,1,7,8\n", "3"),
        {"10,1,1,2,2\n20,1,3,4,\n10,2,5,6,0\n20,2,7,8,1\n", "5"},
        {"\n# frame agent x kind y\n10 1 1 2 2\n20 1 3 -1 4\n10 2 5 0 6\n20 2 7 1 8", "kind"},
        {"frame,id,,x , kind,y\n10,1,1,2,2,9\n20,1,3,4,,9\n10,2,5,6,0,9\n20,2,7,8,1,9\n",
         "kind"}}) {
    SCOPED_TRACE(text);
    const Trajectories other = with_classes(text, column);
    EXPECT_EQ(other.classes, classes);
    EXPECT_EQ(other.paths, t.paths);
    EXPECT_TRUE(other.channels != 2 || other.values == t.values);
  }
  EXPECT_TRUE(with_classes("", "kind").paths.empty());
  EXPECT_TRUE(parse("10 1 1 2 2\n").classes.empty());
}

TEST(TrajectoryTableTest, ClassesThatThereAreNot) {
  auto refused = [](std::string_view text, const std::string& column) {
    return refusal_of([&] { with_classes(text, column); });
  };
  const ErrorFields high = refused("10 1 1 2 2\n20 1 3 4 3\n", "5");
  EXPECT_EQ(high.where, "scenes/street.txt:2:10 (byte 20)");
  EXPECT_EQ(high.got, "`3`");
  EXPECT_NE(high.expected.find("0 to 2"), std::string::npos) << high.expected;
  EXPECT_NE(high.remedy.find("model.classes=4"), std::string::npos) << high.remedy;
  EXPECT_EQ(refused("10 1 1 2 1.5\n", "5").got, "`1.5`");
  EXPECT_EQ(refused("10 1 1 2 car\n", "5").got, "`car`");
  const ErrorFields missing = refused("10 1 1 2\n", "5");
  EXPECT_EQ(missing.what, "a row has the wrong number of columns");
  EXPECT_NE(missing.expected.find("column 5"), std::string::npos) << missing.expected;
  EXPECT_EQ(refused("10 1 1 2 0\n", "7").got, "5");
  EXPECT_EQ(refused("10 1 1 0\n", "4").got, "4");  // a point of one number
  EXPECT_EQ(refused("10 1 1 2 0\n", "2").got, "column 2, the agent");
  const ErrorFields unnamed = refused("10 1 1 2 0\n", "kind");
  EXPECT_EQ(unnamed.where, "scenes/street.txt:1:1 (byte 0)");
  EXPECT_NE(unnamed.what.find("`kind`"), std::string::npos) << unnamed.what;
  EXPECT_NE(refused("# kind agent x y\n", "kind").what.find("`kind`"), std::string::npos);
  // Empty is what stands between commas, and only a class may be.
  EXPECT_EQ(refused("10,1,,2,0\n", "5").expected, "a finite number");
  const Trajectories rest = with_classes("10 1 1 2 2\n20 1 3 4 3\n30 1 5 6 x\n", "5", true);
  EXPECT_EQ(rest.skipped, 2);
  EXPECT_EQ(rest.classes, (std::vector<int32_t>{2}));
}

// --- ragged arrays

template <typename Number>
TensorToWrite tensor(const char* name, const char* dtype, std::vector<int64_t> shape,
                     const std::vector<Number>& values) {
  return {name, dtype, std::move(shape), std::as_bytes(std::span(values))};
}

Trajectories read(std::span<const TensorToWrite> tensors, bool skip_bad = false,
                  const ClassColumn& classes = {}) {
  const std::string bytes = safetensors_bytes(tensors, {});
  return read_ragged_safetensors(std::as_bytes(std::span(bytes)), "data/street.safetensors",
                                 skip_bad, classes);
}

const std::vector<float> kSix = {1, 2, 3, 4, 5, 6};
const std::vector<int64_t> kOffsets = {0, 2, 3};

TEST(RaggedSafetensorsTest, PathsByOffsets) {
  const TensorToWrite good[] = {tensor("values", "F32", {3, 2}, kSix),
                                tensor("offsets", "I64", {3}, kOffsets)};
  const Trajectories t = read(good);
  EXPECT_EQ(t.scene, "street");
  EXPECT_EQ(t.channels, 2);
  EXPECT_EQ(t.frame_step, 1);
  EXPECT_EQ(t.paths, (Paths{{0, 0, 0, 2}, {1, 0, 2, 1}}));
  EXPECT_EQ(t.values, kSix);
  EXPECT_TRUE(t.classes.empty());
}

TEST(RaggedSafetensorsTest, AClassForEachPoint) {
  const std::vector<int32_t> kinds = {2, -7, 0}, high = {0, 1, 3}, few = {0, 1};
  const std::vector<float> halves = {0, 1, 2};
  auto with = [&](const TensorToWrite& more) {
    return std::vector{tensor("values", "F32", {3, 2}, kSix),
                       tensor("offsets", "I64", {3}, kOffsets), more};
  };
  EXPECT_EQ(read(with(tensor("kind", "I32", {3}, kinds)), false, {"kind", 3}).classes,
            (std::vector<int32_t>{2, -1, 0}));
  auto refusal_with = [&](const TensorToWrite& more, const char* name) {
    return refusal_of([&] { read(with(more), false, {name, 3}); });
  };
  const ErrorFields bad = refusal_with(tensor("kind", "I32", {3}, high), "kind");
  EXPECT_EQ(bad.where, "data/street.safetensors: tensor `kind`[2]");
  EXPECT_EQ(bad.got, "3");
  EXPECT_NE(bad.expected.find("0 to 2"), std::string::npos) << bad.expected;
  EXPECT_EQ(refusal_with(tensor("kind", "I32", {3}, high), "5").what, "a tensor is missing");
  EXPECT_EQ(refusal_with(tensor("kind", "I32", {2}, few), "kind").got, "2");
  EXPECT_EQ(refusal_with(tensor("kind", "F32", {3}, halves), "kind").what,
            "a tensor has the wrong type");
  // The path with it is passed over, and the classes of the others stay theirs.
  const Trajectories rest = read(with(tensor("kind", "I32", {3}, high)), true, {"kind", 3});
  EXPECT_EQ(rest.skipped, 1);
  EXPECT_EQ(rest.values, (Values{1, 2, 3, 4}));
  EXPECT_EQ(rest.classes, (std::vector<int32_t>{0, 1}));
}

TEST(RaggedSafetensorsTest, NumbersOfAllTypes) {
  const std::vector<double> doubles = {1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> halves = {0x3C00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600};
  const std::vector<uint16_t> bfloats = {0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0};
  const std::vector<uint64_t> u64 = {0, 2, 3};
  const std::vector<int32_t> i32 = {0, 2, 3};
  const std::vector<uint32_t> u32 = {0, 2, 3};
  const std::vector<int16_t> i16 = {0, 2, 3};
  const std::vector<uint16_t> u16 = {0, 2, 3};
  for (const TensorToWrite& values :
       {tensor("values", "F32", {3, 2}, kSix), tensor("values", "F64", {3, 2}, doubles),
        tensor("values", "F16", {3, 2}, halves), tensor("values", "BF16", {3, 2}, bfloats)}) {
    for (const TensorToWrite& offsets :
         {tensor("offsets", "I64", {3}, kOffsets), tensor("offsets", "U64", {3}, u64),
          tensor("offsets", "I32", {3}, i32), tensor("offsets", "U32", {3}, u32),
          tensor("offsets", "I16", {3}, i16), tensor("offsets", "U16", {3}, u16)}) {
      const Trajectories t = read(std::vector{values, offsets});
      EXPECT_EQ(t.values, kSix) << values.dtype;
      EXPECT_EQ(t.paths, (Paths{{0, 0, 0, 2}, {1, 0, 2, 1}})) << offsets.dtype;
    }
  }
}

TEST(RaggedSafetensorsTest, EmptyAndSingle) {
  const std::vector<int64_t> none = {0}, ones = {0, 1, 2, 3};
  const Trajectories empty = read(
      std::vector{tensor<float>("values", "F32", {0, 2}, {}), tensor("offsets", "I64", {1}, none)});
  EXPECT_TRUE(empty.paths.empty());
  EXPECT_EQ(empty.channels, 0);
  const Trajectories single =
      read(std::vector{tensor("values", "F32", {3, 2}, kSix), tensor("offsets", "I64", {4}, ones)});
  EXPECT_EQ(single.paths.size(), 3u);
  EXPECT_EQ(single.frame_step, 0);
}

TEST(RaggedSafetensorsTest, RefusesWhatDoesNotFit) {
  const auto values = tensor("values", "F32", {3, 2}, kSix);
  auto what = [&](const TensorToWrite& v, const TensorToWrite& o) {
    return refusal_of([&] { read(std::vector{v, o}); });
  };
  auto offsets = [&](const std::vector<int64_t>& numbers) {
    return what(values, tensor("offsets", "I64", {std::ssize(numbers)}, numbers));
  };
  EXPECT_EQ(offsets({0, 3}).what, "");
  EXPECT_EQ(offsets({}).got, "none");
  EXPECT_EQ(offsets({0}).got, "from 0 to 0");
  EXPECT_EQ(offsets({1, 3}).got, "from 1 to 3");
  EXPECT_EQ(offsets({0, 2}).expected, "from 0 to 3");
  EXPECT_EQ(offsets({0, 4, 3}).where, "data/street.safetensors: tensor `offsets`[2]");
  EXPECT_EQ(offsets({0, 1, 1, 3}).expected, "more than 1");
  EXPECT_EQ(offsets({0, -1, 3}).got, "-1");
  EXPECT_EQ(offsets({0, std::numeric_limits<int64_t>::min(), 3}).what,
            "the offsets do not increase");
  EXPECT_EQ(what(values, tensor("offsets", "F64", {3}, kOffsets)).got, "F64");
  EXPECT_EQ(what(values, tensor("offsets", "I64", {3, 1}, kOffsets)).got, "[3, 1]");
  EXPECT_EQ(what(values, tensor("others", "I64", {3}, kOffsets)).what, "a tensor is missing");
  const auto good_offsets = tensor("offsets", "I64", {3}, kOffsets);
  EXPECT_EQ(what(tensor("values", "F32", {6}, kSix), good_offsets).got, "[6]");
  EXPECT_EQ(what(tensor("values", "I32", {3, 2}, kSix), good_offsets).got, "I32");
  EXPECT_EQ(what(tensor<float>("values", "F32", {3, 0}, {}), good_offsets).got, "[3, 0]");
}

TEST(RaggedSafetensorsTest, APathWithAValueThatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = INFINITY;
  const std::vector<float> some = {nan, 2, 3, 4, 5, 6, 7, inf, 9, 10};
  const std::vector<int64_t> offsets = {0, 1, 3, 4, 5};
  const std::vector tensors = {tensor("values", "F32", {5, 2}, some),
                               tensor("offsets", "I64", {5}, offsets)};
  const ErrorFields error = refusal_of([&] { read(tensors); });
  EXPECT_EQ(error.where, "data/street.safetensors: tensor `values`[0, 0]");
  EXPECT_EQ(error.got, "nan");
  const Trajectories rest = read(tensors, true);
  EXPECT_EQ(rest.skipped, 2);
  EXPECT_EQ(rest.paths, (Paths{{1, 0, 0, 2}, {3, 0, 2, 1}}));
  EXPECT_EQ(rest.values, (Values{3, 4, 5, 6, 9, 10}));
}

}  // namespace
}  // namespace millrace
