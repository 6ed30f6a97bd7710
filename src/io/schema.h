// The configuration mechanism. A struct of settings declares its keys once, each bound to a member
// whose initial value is the default; from that one declaration come parsing, ranges, error
// messages, the resolved configuration of a run and docs/CONFIG.md.
//
//   Schema schema;
//   schema.integer("training.batch_size", &settings.batch_size).min(1).help("Sequences per step.");
//   schema.load("gpt.yaml");                              // default < file < command line
//   schema.override_with("training.batch_size=64");
//   schema.finish();
//
// Everything wrong with a file or an override is an Error with ErrorCode::config whose `where` is
// file:line:column and the key, or the override as it was typed.
#pragma once
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/duration.h"
#include "core/file.h"
#include "io/yaml.h"

namespace millrace {

using IntegerRows = std::vector<std::vector<int64_t>>;

// One declared key. The limits of a list hold for each of its numbers.
class Key {
 public:
  Key& min(double low);     // value >= low
  Key& max(double high);    // value <= high
  Key& above(double low);   // value > low
  Key& below(double high);  // value < high
  Key& range(double low, double high) { return min(low).max(high); }
  Key& allow_auto();                 // integer and bytes: the word `auto` is stored as -1
  Key& help(std::string meaning);    // one sentence, for people
  Key& alias(std::string old_path);  // another spelling that is accepted
  Key& untimed();                    // a duration that is not in seconds
  Key& required();                   // finish() refuses a configuration without it

 private:
  friend class Schema;
  enum class Type {
    integer,
    number,
    boolean,
    text,
    choice,
    bytes,
    duration,
    integer_rows,
    text_list,
    duration_list
  };
  using Target = std::variant<int64_t*, double*, bool*, std::string*, IntegerRows*,
                              std::vector<std::string>*, Duration*, std::vector<Duration>*>;

  bool has_order() const;
  std::string type_name() const;
  std::string expected() const;    // "an integer, at least 1, or `auto`"
  std::string limits() const;      // "at least 1", or empty
  std::string value_text() const;  // the value as YAML
  bool holds(double value) const;  // within the limits; false for NaN

  // What the text stands for, or false when it does not fit the type or the limits.
  bool parse_integer(const YamlNode& node, int64_t* value) const;
  bool parse_number(const YamlNode& node, double* value) const;
  bool parse_bytes_text(const YamlNode& node, int64_t* value) const;
  bool parse_duration_text(const YamlNode& node, Duration* value) const;
  // The part of the node that does not fit (the target is then unchanged), or nullptr.
  const YamlNode* assign(const YamlNode& node);
  [[noreturn]] void refuse(const YamlNode& got, std::string where) const;

  std::string path_;
  Type type_ = Type::text;
  Target target_;
  std::vector<std::string> choices_;
  std::vector<std::string> aliases_;
  std::string help_;
  double low_ = -std::numeric_limits<double>::infinity();
  double high_ = std::numeric_limits<double>::infinity();
  bool low_open_ = false, high_open_ = false;
  bool auto_ = false, required_ = false, untimed_ = false;
  std::string default_text_;

  bool set_ = false;
  int set_by_load_ = 0;  // which load() gave the value, to find a key given twice in one file
  std::string origin_ = "default";
  std::string where_;
};

class Schema {
 public:
  Schema() = default;
  Schema(const Schema&) = delete;
  Schema& operator=(const Schema&) = delete;

  // Declarations. `path` is words joined by dots ("training.batch_size"); one without a dot stands
  // at the top level. The targets must outlive the schema.
  Key& integer(std::string path, int64_t* target);
  Key& number(std::string path, double* target);
  Key& boolean(std::string path, bool* target);
  Key& text(std::string path, std::string* target);
  Key& choice(std::string path, std::string* target, std::vector<std::string> allowed);
  Key& bytes(std::string path, int64_t* target);             // "8GiB"; 0 = no limit
  Key& duration(std::string path, Duration* target);         // "500", "2 epochs", "10 minutes"
  Key& integer_rows(std::string path, IntegerRows* target);  // [[1, 2], [3, 4]]
  Key& text_list(std::string path, std::vector<std::string>* target);   // or one text
  Key& duration_list(std::string path, std::vector<Duration>* target);  // or one duration

  // Section `section` holds alternatives of section `of`: under each name, keys of that section.
  // They mean nothing until one is taken.
  void alternatives(std::string section, std::string of, std::string help);

  // Keys that people may look for and that are not there, in whatever section: why.
  void absent(std::vector<std::string> words, std::string why);
  // What others call a key.
  void renamed(std::vector<std::string> words, const std::string& path);

  void load(const fs::path& file);  // YAML or JSON
  void load_text(std::string_view text, const std::string& name);
  // "a.b=c", with or without a leading "+" or "++". Texts and choices are taken as they stand
  // unless they start with a quote; everything else is read as YAML.
  void override_with(const std::string& assignment);
  std::vector<std::string> alternative_names() const;  // those of the last file, in its order
  // The keys of this one, as if the file had them in the section itself. It is one of the names.
  void take_alternative(std::string_view name);
  // After the last load and override: every required key was given.
  void finish() const;

  bool was_set(std::string_view path) const;  // by a file or the command line
  // "default", "gpt.yaml:3:5", "command line: a.b=c", or what note() said.
  const std::string& origin(std::string_view path) const;
  // The origin with the key's name, for the `where` of errors raised by later checks.
  const std::string& where(std::string_view path) const;
  // Whether a config may have it.
  bool knows(std::string_view path) { return find_given(path) != nullptr || is_section(path); }
  // The key that a config may write so (an alias, a word without its section), or "".
  std::string path_of(std::string_view written);
  std::vector<std::string> paths() const;               // every key, in the order of declaration
  std::string value_text(std::string_view path) const;  // the value as YAML
  // Records who changed the target afterwards: note("model.vocab", "auto: from the data").
  void note(std::string_view path, std::string origin);

  std::string resolved_yaml() const;  // every value with its origin; load() reads it back
  std::string markdown() const;       // the tables of docs/CONFIG.md

 private:
  Key& declare(std::string path, Key::Type type, Key::Target target);
  const Key& key(std::string_view path) const;  // declared, or MR_CHECK
  Key* find(std::string_view path);             // by path or alias
  // The same as people write it: a word without its section is the key of that name, where there is
  // only one.
  Key* find_given(std::string_view path);
  bool is_section(std::string_view path) const;
  std::string names_in(const std::string& section) const;
  void check_declarations() const;
  void load_map(const YamlNode& map, const std::string& prefix, const std::string& file);
  // `path` is the key; `shown` is how the file has it.
  void load_entry(const YamlEntry& entry, const std::string& path, const std::string& shown,
                  const std::string& file);
  void load_alternatives(const YamlEntry& section, const std::string& file);
  [[noreturn]] void refuse_unknown(const std::string& path, std::string where) const;
  void write_section(const std::string& prefix, std::string* out) const;

  std::deque<Key> keys_;  // in the order of declaration; references stay valid
  int loads_ = 0;
  std::map<std::string, std::string> absent_;   // word -> why
  std::map<std::string, std::string> renamed_;  // word -> path

  struct Alternatives {
    std::string section, of, help, file;
    std::vector<YamlEntry> entries;
  };
  Alternatives alternatives_;  // without a section: there are none
};

}  // namespace millrace
