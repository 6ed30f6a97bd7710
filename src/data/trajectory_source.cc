#include "data/trajectory_source.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <tuple>

#include "core/error.h"
#include "io/quote.h"
#include "io/safetensors.h"
#include "io/text_place.h"

namespace millrace {
namespace {

constexpr const char* kFirstColumns[] = {"frame", "agent"};  // before the channels
constexpr size_t kColumnsBefore = std::size(kFirstColumns);
constexpr size_t kLeastColumns = 4;

constexpr const char *kBlanks = " \t\r", *kBetween = " \t\r,";

void skip_blanks(std::string_view line, size_t& at) {
  at = std::min(line.find_first_not_of(kBlanks, at), line.size());
}

std::string scene_of(const fs::path& file) { return file.stem().string(); }

struct Row {
  int64_t agent = 0, frame = 0, line = 0;
  size_t at = 0;  // of its first value
  int32_t label = -1;
};

// What is wrong with a row, and where in its line.
struct Fault {
  size_t at = 0;
  const char* what = "";
  std::string expected, got;
  std::string remedy = "mend the row";
};

// "780", "780.0" and "7.8e2" are the same frame. Not beyond 2^62, so that differences fit.
std::optional<int64_t> whole_number(std::string_view word) {
  constexpr int64_t kLimit = int64_t{1} << 62;
  const char* end = word.data() + word.size();
  int64_t exact = 0;
  const auto [stop, error] = std::from_chars(word.data(), end, exact);
  if (stop == end && error == std::errc())
    return exact > -kLimit && exact < kLimit ? std::optional(exact) : std::nullopt;
  double value = 0;
  const auto [double_stop, double_error] = std::from_chars(word.data(), end, value);
  if (double_stop != end || double_error != std::errc()) return std::nullopt;
  // Behind 2^53 a double may be another number than was written; NaN fails both.
  if (!(std::fabs(value) < 0x1p53) || value != std::floor(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

std::optional<float> finite_number(std::string_view word) {
  const char* end = word.data() + word.size();
  double value = 0;
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  if (stop != end || error != std::errc()) return std::nullopt;
  const auto narrow = static_cast<float>(value);
  return std::isfinite(narrow) ? std::optional(narrow) : std::nullopt;
}

std::string classes_text(int64_t classes) {
  return fmt::format("a class, 0 to {}; where there is none, nothing or a negative number",
                     classes - 1);
}

class Table {
 public:
  Table(const std::string& file, bool skip_bad, const ClassColumn& classes)
      : file_(file),
        skip_bad_(skip_bad),
        classes_asked_(classes),
        class_column_(static_cast<size_t>(classes.number())) {}

  void read(std::string_view text) {
    TextPlace place{file_};
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
      std::string_view line = text.substr(0, end);
      if (line.ends_with('\n')) line.remove_suffix(1);
      if (classes_asked_.is_asked_for() && class_column_ == 0) {
        find_class_column(line, place);
      } else if (!begun_ && is_names(line)) {
        begun_ = true;
      } else if (const auto fault = read_line(line, place.line)) {
        if (!skip_bad_) refuse(*fault, place.inside(line, fault->at));
        ++skipped_;
      }
      text.remove_prefix(end);
      place.line += 1;
      place.byte += static_cast<int64_t>(end);
    }
  }

  Trajectories paths() {
    Trajectories result;
    result.scene = scene_of(file_);
    std::sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) {
      return std::tie(a.agent, a.frame, a.line) < std::tie(b.agent, b.frame, b.line);
    });
    drop_repeated();
    result.skipped = skipped_;
    if (rows_.empty()) return result;
    const size_t channels = columns_ - columns_without_channels();
    result.channels = static_cast<int64_t>(channels);
    result.frame_step = usual_step();
    result.values.reserve(rows_.size() * channels);
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      if (i == 0 || row.agent != rows_[i - 1].agent ||
          row.frame - rows_[i - 1].frame > result.frame_step)
        result.paths.push_back({row.agent, row.frame, static_cast<int64_t>(i), 0});
      ++result.paths.back().length;
      const float* values = values_.data() + row.at;
      result.values.insert(result.values.end(), values, values + channels);
      if (class_column_ > 0) result.classes.push_back(row.label);
    }
    return result;
  }

 private:
  [[noreturn]] static void refuse(const Fault& fault, const std::string& where) {
    throw Error({.code = ErrorCode::config,
                 .what = fault.what,
                 .where = where,
                 .expected = fault.expected,
                 .got = fault.got,
                 .remedy = fault.remedy + kOrSkipBad});
  }

  size_t columns_without_channels() const { return kColumnsBefore + (class_column_ > 0 ? 1 : 0); }

  // The first line with something in it has the names of the columns.
  void find_class_column(std::string_view line, const TextPlace& place) {
    size_t at = 0;
    skip_blanks(line, at);
    if (at == line.size()) return;
    const size_t first = at;
    if (line[at] == '#') ++at;
    for (size_t column = 1; at < line.size(); ++column) {
      skip_blanks(line, at);
      const size_t end = std::min(line.find_first_of(kBetween, at), line.size());
      if (line.substr(at, end - at) == classes_asked_.name) {
        if (column > kColumnsBefore) class_column_ = column;
        break;
      }
      skip_blanks(line, at = end);
      if (at < line.size() && line[at] == ',') ++at;
    }
    begun_ = class_column_ > 0;
    if (begun_) return;
    throw Error({.code = ErrorCode::config,
                 .what = "no column of the table is called " + quote(classes_asked_.name),
                 .where = place.inside(line, first),
                 .expected = "a first line that names the columns: frame, agent, and behind them " +
                             quote(classes_asked_.name),
                 .got = quote(line.substr(first, 80), 80),
                 .remedy = "data.class_column=5, or whatever number it has"});
  }

  // "frame,agent,x,y". Nothing before the first comma is no name: behind it a column may be that
  // of an index, which is no frame.
  static bool is_names(std::string_view line) {
    size_t at = 0;
    skip_blanks(line, at);
    const std::string_view word = line.substr(at, line.find_first_of(kBetween, at) - at);
    if (word.empty() || word[0] == '#') return false;
    double value = 0;
    return std::from_chars(word.data(), word.data() + word.size(), value).ptr == word.data();
  }

  std::optional<Fault> read_class(std::string_view word, size_t at, Row& row) const {
    if (word.empty()) return std::nullopt;
    const auto value = whole_number(word);
    const int64_t classes = classes_asked_.classes;
    if (value && *value < classes) {
      row.label = static_cast<int32_t>(std::max<int64_t>(*value, -1));
      return std::nullopt;
    }
    Fault fault{at, "a row has a class that there is not", classes_text(classes), quote(word, 40)};
    if (value) fault.remedy = fmt::format("mend the row or set model.classes={}", *value + 1);
    return fault;
  }

  // What a bad row leaves in values_ belongs to no row.
  std::optional<Fault> read_line(std::string_view line, int64_t number) {
    size_t at = 0;
    skip_blanks(line, at);
    if (at == line.size() || line[at] == '#') return std::nullopt;

    begun_ = true;
    const size_t begin = at;
    Row row{0, 0, number, values_.size()};
    size_t columns = 0;
    auto not_a = [&](const char* expected) {
      return Fault{at, "a row holds what is not a number", expected,
                   at < line.size() ? quote(line.substr(at, 40), 40) : "the end of the line"};
    };
    for (;;) {
      const size_t end = std::min(line.find_first_of(kBetween, at), line.size());
      const std::string_view word = line.substr(at, end - at);
      if (columns < kColumnsBefore) {
        const auto value = whole_number(word);
        if (!value)
          return not_a(columns == 0 ? "the frame, a whole number" : "the agent, a whole number");
        (columns == 0 ? row.frame : row.agent) = *value;
      } else if (columns + 1 == class_column_) {
        if (auto fault = read_class(word, at, row)) return fault;
      } else {
        const auto value = finite_number(word);
        if (!value) return not_a("a finite number");
        values_.push_back(*value);
      }
      ++columns;
      skip_blanks(line, at = end);
      if (at == line.size()) break;
      if (line[at] == ',') skip_blanks(line, ++at);
    }
    const size_t least = std::max(class_column_, kLeastColumns + (class_column_ > 0 ? 1 : 0));
    if (columns_ == 0 && columns >= least) columns_ = columns;
    if (columns != columns_)
      return Fault{begin, "a row has the wrong number of columns",
                   columns_ > 0 ? fmt::format("{}, as the rows before it", columns_)
                   : class_column_ > 0
                       ? fmt::format("at least {}: frame, agent, x, y, and the class in column {}",
                                     least, class_column_)
                       : "at least 4: frame, agent, x, y",
                   std::to_string(columns)};
    rows_.push_back(row);
    return std::nullopt;
  }

  // Of the rows of one agent in one frame, which stand side by side, the first is kept.
  void drop_repeated() {
    size_t kept = 0;
    for (const Row& row : rows_) {
      if (kept > 0 && row.agent == rows_[kept - 1].agent && row.frame == rows_[kept - 1].frame) {
        if (!skip_bad_)
          refuse({0, "an agent is twice in one frame", "one row for each agent and frame",
                  fmt::format("agent {} in frame {} on line {} and on line {}", row.agent,
                              row.frame, rows_[kept - 1].line, row.line)},
                 fmt::format("{}:{}", file_, row.line));
        ++skipped_;
      } else {
        rows_[kept++] = row;
      }
    }
    rows_.resize(kept);
  }

  // The most common difference, of equally common ones the least.
  int64_t usual_step() const {
    std::vector<int64_t> steps;
    for (size_t i = 1; i < rows_.size(); ++i) {
      if (rows_[i].agent == rows_[i - 1].agent)
        steps.push_back(rows_[i].frame - rows_[i - 1].frame);
    }
    std::sort(steps.begin(), steps.end());
    int64_t usual = 0;
    for (size_t begin = 0, most = 0; begin < steps.size();) {
      size_t end = begin;
      while (end < steps.size() && steps[end] == steps[begin]) ++end;
      if (end - begin > most) {
        most = end - begin;
        usual = steps[begin];
      }
      begin = end;
    }
    return usual;
  }

  const std::string& file_;
  const bool skip_bad_;
  const ClassColumn& classes_asked_;
  size_t class_column_;  // from 1; 0: there is none, or its name was not read yet
  std::vector<Row> rows_;
  std::vector<float> values_;
  size_t columns_ = 0;  // of the first row
  bool begun_ = false;  // a line of names, or a row, was seen
  int64_t skipped_ = 0;
};

[[noreturn]] void refuse_tensor(const std::string& what, const std::string& where,
                                const std::string& expected, const std::string& got) {
  throw Error({.code = ErrorCode::config,
               .what = what,
               .where = where,
               .expected = expected,
               .got = got,
               .remedy = "write the file with values [N, channels], offsets [R + 1] and, where "
                         "data.class_column names them, classes [N]"});
}

std::string place_of(const SafetensorsFile& file, const std::string& tensor) {
  return file.path().string() + ": tensor " + quote(tensor);
}

const SafetensorsFile::Entry& entry_of(const SafetensorsFile& file, const std::string& name,
                                       size_t rank, const char* expected) {
  const auto* entry = file.find(name);
  if (entry == nullptr)
    refuse_tensor("a tensor is missing", place_of(file, name), expected,
                  fmt::format("{} others", file.entries().size()));
  if (entry->shape.size() != rank)
    refuse_tensor("a tensor has the wrong shape", place_of(file, name), expected,
                  fmt::format("[{}]", fmt::join(entry->shape, ", ")));
  return *entry;
}

template <typename Stored>
std::vector<int64_t> widen(std::span<const std::byte> bytes) {
  std::vector<int64_t> numbers(bytes.size() / sizeof(Stored));
  for (size_t i = 0; i < numbers.size(); ++i) {
    Stored value;
    std::memcpy(&value, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    numbers[i] = value;
  }
  return numbers;
}

std::vector<int64_t> integers(const SafetensorsFile& file, const SafetensorsFile::Entry& entry) {
  const std::span<const std::byte> bytes = file.bytes(entry);
  // An unsigned one that does not fit becomes negative, which no offset may be either.
  if (entry.dtype == "I64" || entry.dtype == "U64") return widen<int64_t>(bytes);
  if (entry.dtype == "I32") return widen<int32_t>(bytes);
  if (entry.dtype == "U32") return widen<uint32_t>(bytes);
  if (entry.dtype == "I16") return widen<int16_t>(bytes);
  if (entry.dtype == "U16") return widen<uint16_t>(bytes);
  refuse_tensor("a tensor has the wrong type", place_of(file, entry.name),
                "integers of 16 bits or more: I64, U64, I32, U32, I16, U16", entry.dtype);
}

}  // namespace

std::string path_place(const std::string& file, const Trajectory& path) {
  return fmt::format("{}: agent {} from frame {} on", file, path.agent, path.first_frame);
}

int64_t ClassColumn::number() const {
  int64_t number = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data(), end, number);
  return stop == end && error == std::errc() && number > 0 ? number : 0;
}

Trajectories parse_trajectory_table(std::string_view text, const std::string& file, bool skip_bad,
                                    const ClassColumn& classes) {
  if (const int64_t number = classes.number(); number > 0 && number <= std::ssize(kFirstColumns))
    throw Error({.code = ErrorCode::config,
                 .what = "a class cannot stand in this column",
                 .where = file,
                 .expected = "column 3 or one behind it, or the name of one",
                 .got = fmt::format("column {}, the {}", number,
                                    kFirstColumns[static_cast<size_t>(number) - 1]),
                 .remedy = "data.class_column=5, or whatever number it has"});
  Table table(file, skip_bad, classes);
  table.read(text);
  return table.paths();
}

Trajectories read_ragged_safetensors(std::span<const std::byte> bytes, const fs::path& name,
                                     bool skip_bad, const ClassColumn& classes) {
  const std::string values = "values", offsets = "offsets";
  const SafetensorsFile file(bytes, name);
  const auto& points = entry_of(file, values, 2, "floats [N, channels]");
  const auto& bounds = entry_of(file, offsets, 1, "integers [R + 1]");
  const int64_t count = points.shape[0], channels = points.shape[1];
  if (channels < 1)
    refuse_tensor("points have no channels", place_of(file, values), "at least one",
                  fmt::format("[{}, {}]", count, channels));
  const std::vector<int64_t> begins = integers(file, bounds);
  if (begins.empty() || begins.front() != 0 || begins.back() != count)
    refuse_tensor(
        "the offsets do not cover the values", place_of(file, offsets),
        fmt::format("from 0 to {}", count),
        begins.empty() ? "none" : fmt::format("from {} to {}", begins.front(), begins.back()));
  for (size_t i = 1; i < begins.size(); ++i) {
    if (begins[i] <= begins[i - 1])
      refuse_tensor("the offsets do not increase",
                    fmt::format("{}[{}]", place_of(file, offsets), i),
                    fmt::format("more than {}", begins[i - 1]), std::to_string(begins[i]));
  }

  std::vector<int64_t> labels;
  if (classes.is_asked_for()) {
    labels = integers(file, entry_of(file, classes.name, 1, "integers [N], the class of a point"));
    if (std::ssize(labels) != count)
      refuse_tensor("a class for each point is missing", place_of(file, classes.name),
                    fmt::format("{}, as there are points", count), std::to_string(labels.size()));
  }

  Trajectories result;
  result.scene = scene_of(name);
  result.values = file.to_f32(points);
  auto put = result.values.begin();  // paths move up over those that are passed over
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    const auto begin = result.values.begin() + begins[i] * channels;
    const auto end = result.values.begin() + begins[i + 1] * channels;
    const auto bad = std::find_if(begin, end, [](float value) { return !std::isfinite(value); });
    const auto label_begin = labels.begin() + (labels.empty() ? 0 : begins[i]),
               label_end = labels.begin() + (labels.empty() ? 0 : begins[i + 1]);
    const auto bad_label = std::find_if(label_begin, label_end,
                                        [&](int64_t label) { return label >= classes.classes; });
    if (bad_label != label_end && !skip_bad)
      refuse_tensor("a point has a class that there is not",
                    fmt::format("{}[{}]", place_of(file, classes.name), bad_label - labels.begin()),
                    classes_text(classes.classes), std::to_string(*bad_label));
    if (bad != end || bad_label != label_end) {
      if (!skip_bad) {
        const int64_t index = bad - result.values.begin();
        refuse_tensor(
            "a value is not finite",
            fmt::format("{}[{}, {}]", place_of(file, values), index / channels, index % channels),
            "a finite number", fmt::format("{}", *bad));
      }
      ++result.skipped;
      continue;
    }
    const int64_t at = (put - result.values.begin()) / channels;
    result.paths.push_back({static_cast<int64_t>(i), 0, at, begins[i + 1] - begins[i]});
    for (auto label = label_begin; label != label_end; ++label)
      result.classes.push_back(static_cast<int32_t>(std::max<int64_t>(*label, -1)));
    put = put == begin ? end : std::copy(begin, end, put);
  }
  result.values.erase(put, result.values.end());
  if (result.paths.empty()) return result;
  result.channels = channels;
  const bool steps = std::any_of(result.paths.begin(), result.paths.end(),
                                 [](const Trajectory& path) { return path.length > 1; });
  result.frame_step = steps ? 1 : 0;
  return result;
}

}  // namespace millrace
