// A configuration changed as a person would do it: some keys get other values, and comments, order
// and spelling of the rest stay. Every change is checked before it counts: the text is read again,
// and no other key may say something else.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "io/schema.h"

namespace millrace {

struct ConfigChange {
  std::string path;     // as the schema has it: "training.batch_size"
  std::string value;    // YAML; not held against the key's type here
  std::string comment;  // one line that says why: "was 1; +212 %"; empty: none
};

// The text with these keys changed or put in. Of `schema` only the names count, not the values. A
// JSON file stays one, without the comments. Where a change cannot be made in place, the file is
// written anew with all its keys, and says so in its first line.
//
// A text that is not YAML, or that the schema would refuse in a way that leaves no place for the
// key, is an Error; `name` is the file's. One that the schema loads is not.
std::string edit_config(std::string_view text, std::span<const ConfigChange> changes,
                        Schema& schema, const std::string& name);

// Whether `after` says what `before` says, but for these keys, and these have their new values.
bool edited_config_matches(std::string_view before, std::string_view after,
                           std::span<const ConfigChange> changes, Schema& schema);

}  // namespace millrace
