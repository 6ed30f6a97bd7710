// Validation in constant memory: fixed windows, one batch at a time.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "data/text_source.h"
#include "exec/session.h"
#include "train/settings.h"

namespace millrace {

class Evaluation {
 public:
  Evaluation(const Settings& settings, const TextData& data);
  // Mean negative log-likelihood over the validation windows with the weights the session holds;
  // `plan` of it is an evaluation graph. The last batch is filled up with ignored targets. Nothing
  // when `stop` said so in between.
  std::optional<double> run(Session& session, size_t plan, const std::function<bool()>& stop);

 private:
  const Settings& s_;
  const TextData& data_;
  std::vector<int64_t> begins_;
  std::vector<int32_t> tokens_, targets_;
};

}  // namespace millrace
