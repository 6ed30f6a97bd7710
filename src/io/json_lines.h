// JSON lines: one JSON object (RFC 8259) a line, of which some text fields are read by their names.
// A line is scanned once, no tree is built of it, and all of it is checked: what stands beside the
// fields must be JSON too.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/text_place.h"

namespace millrace {

class JsonLines {
 public:
  // `text` is whole lines; `place` says where it begins. A name is a key of the object, or keys of
  // objects in each other: "message.content".
  JsonLines(std::string_view text, std::span<const std::string> names, TextPlace place);

  // The next record's fields in the order of the names, or false behind the last one. Empty lines
  // are passed over, and so is a byte order mark. Error with file, line, column and byte when a
  // line is not a JSON object or nests deeper than 256, or when a field is missing, not a string,
  // or there twice; reading can then go on behind the line. Strings come decoded: UTF-8, and
  // nothing in them that UTF-8 cannot say.
  bool next(std::vector<std::string>& fields);

  // Of the record that was read last, while `text` is there: where its line begins, and where the
  // text of a field does.
  const TextPlace& place() const { return record_; }
  TextPlace place(size_t field) const;

 private:
  class Scanner;
  // A key on the way to a field. They are a tree, in which the record itself comes first.
  struct Key {
    std::string name;
    std::string path;            // from the record on
    std::vector<size_t> inner;   // keys in the object that stands here
    std::vector<size_t> fields;  // what is to get the string that stands here
    bool seen = false;           // in the record at hand
  };

  std::string_view text_;
  std::string_view line_;  // of the last record
  std::vector<Key> keys_;
  std::vector<size_t> begins_;  // of the fields of the last record, in its line
  size_t at_ = 0;               // the next line
  int64_t next_line_, first_byte_;
  TextPlace record_;
};

}  // namespace millrace
