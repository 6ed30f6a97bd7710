// Options that stand on a command line: what was given is done, or refused.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "io/schema.h"
#include "train/beam_search.h"

namespace millrace {

struct Given {
  std::vector<std::string> options;  // "--beam"

  bool has(const std::string& option) const {
    return std::find(options.begin(), options.end(), option) != options.end();
  }
  // Refuses what was given of these: `what` they are none of, as "a beam search", and what to do.
  void refuse(std::initializer_list<const char*> those, const std::string& what,
              const std::string& remedy) const;
};

// The options of a search on the command line, and as keys of a config.
BeamSpelling option_spelling();
BeamSpelling key_spelling(const Schema& schema);
// As many hypotheses as a command was told, or that suit the model: a beam search finds the target
// of a source; other texts are drawn, and the beam is 0.
inline int64_t settled_beam(const Given& given, int64_t beam, const Model& model) {
  return given.has("--beam") ? beam : model.takes().pairs ? 4 : 0;
}

}  // namespace millrace
