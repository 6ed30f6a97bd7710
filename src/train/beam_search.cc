#include "train/beam_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/process.h"
#include "core/text.h"

namespace millrace {
namespace {

struct Candidate {
  double score;  // log-probability
  size_t row;    // that it grows from
  int32_t token;
};

// Ties go to the earlier row, then to the lower token: the same on every machine.
bool better(const Candidate& a, const Candidate& b) {
  if (a.score != b.score) return a.score > b.score;
  return a.row != b.row ? a.row < b.row : a.token < b.token;
}

// Keeps the best so many of all that are offered.
class Best {
 public:
  explicit Best(size_t count) : count_(count) {}
  void offer(const Candidate& c) {
    if (kept_.size() == count_ && !better(c, kept_.back())) return;
    kept_.insert(std::upper_bound(kept_.begin(), kept_.end(), c, better), c);
    if (kept_.size() > count_) kept_.pop_back();
  }
  const std::vector<Candidate>& kept() const { return kept_; }

 private:
  size_t count_;
  std::vector<Candidate> kept_;  // best first
};

// The tokens that would make the last n of `tokens` and one more a repetition.
std::vector<int32_t> repeating(std::span<const int32_t> tokens, int64_t n) {
  std::vector<int32_t> found;
  const auto before = static_cast<size_t>(n - 1);
  if (n < 1 || tokens.size() < before) return found;
  const auto last = tokens.last(before);
  for (size_t i = 0; i + before < tokens.size(); ++i)
    if (std::equal(last.begin(), last.end(), tokens.begin() + static_cast<std::ptrdiff_t>(i)))
      found.push_back(tokens[i + before]);
  return found;
}

// A word that a hypothesis could grow by.
struct Offer {
  float probability;
  int32_t word;
};

// The hypotheses of one source.
class Search {
 public:
  // At most `most` tokens; `never` is none of them.
  Search(const BeamOptions& options, const TargetTokens& tokens, int64_t most, int32_t never)
      : options_(&options), tokens_(&tokens), most_(most), never_(never) {}

  size_t live() const { return live_.size(); }
  bool done() const { return enough() || live_.empty() || grown_ >= most_; }
  // Of the last step: which hypothesis k grew out of, and by what.
  size_t parent(size_t k) const { return parents_[k]; }
  int32_t last(size_t k) const { return live_[k].tokens.back(); }

  // Every one by a token, the step-th. likeliest(k): the likeliest words behind hypothesis k;
  // all(k): every word, for when too many of those may not follow.
  template <typename Offers>
  void grow(int64_t step, Offers likeliest, Offers all) {
    Best best(2 * width());  // at most half of them end
    for (size_t k = 0; k < live_.size(); ++k) {
      const std::vector<int32_t> banned = repeating(live_[k].tokens, options_->no_repeat_ngram);
      auto may_follow = [&](const Offer& o) {
        return o.word != never_ && (o.word != tokens_->end || step >= options_->min_length) &&
               std::find(banned.begin(), banned.end(), o.word) == banned.end();
      };
      std::vector<Offer> offers = likeliest(k);
      if (std::ranges::count_if(offers, may_follow) < 2 * options_->beam) offers = all(k);
      for (const Offer& o : offers) {
        if (std::isnan(o.probability))
          throw Error({.code = ErrorCode::failure,
                       .what = "the model's probabilities are not numbers",
                       .where = fmt::format("behind token {} of a target", step),
                       .expected = "numbers from 0 to 1",
                       .got = "NaN",
                       .remedy = "weights of a model that did not diverge"});
        if (o.probability > 0 && may_follow(o))
          best.offer({live_[k].score + std::log(static_cast<double>(o.probability)), k, o.word});
      }
    }
    std::vector<Hypothesis> next;
    parents_.clear();
    for (size_t i = 0; i < best.kept().size() && next.size() < width(); ++i) {
      const Candidate& c = best.kept()[i];
      Hypothesis h = live_[c.row];
      h.score = c.score;
      if (c.token == tokens_->end) {
        if (i < width()) finish(std::move(h), static_cast<size_t>(step) + 1);
        continue;
      }
      h.tokens.push_back(c.token);
      next.push_back(std::move(h));
      parents_.push_back(c.row);
    }
    live_ = std::move(next);
    grown_ = step + 1;
  }

  Hypothesis best() {
    if (!enough())  // no more room: what is there competes as it is
      for (Hypothesis& h : live_) {
        const size_t length = h.tokens.size();
        finish(std::move(h), length);
      }
    const auto best = std::max_element(
        finished_.begin(), finished_.end(),
        [](const Hypothesis& a, const Hypothesis& b) { return a.score < b.score; });
    return best == finished_.end() ? Hypothesis{} : std::move(*best);
  }

 private:
  size_t width() const { return static_cast<size_t>(options_->beam); }
  bool enough() const { return finished_.size() >= width(); }

  void finish(Hypothesis h, size_t length) {
    h.score /= std::pow(static_cast<double>(std::max<size_t>(1, length)), options_->length_penalty);
    finished_.push_back(std::move(h));
  }

  const BeamOptions* options_;
  const TargetTokens* tokens_;
  int64_t most_, grown_ = 0;
  int32_t never_;
  std::vector<Hypothesis> live_ = std::vector<Hypothesis>(1);  // the others would be the same
  std::vector<Hypothesis> finished_;
  std::vector<size_t> parents_;
};

}  // namespace

BeamSession::BeamSession(const Model& model, const BeamRoom& room, const BeamOptions& options,
                         const PassOptions& passes, Backend& backend)
    : plans_(make_beam_plans(model, room, options.beam, passes, backend)),
      refresh_(
          make_refresh_plan(std::array<const Plan*, 2>{&plans_.encode, &plans_.decode}, backend)),
      session_(open(room, options, backend)),
      beam_(model, session_, 0, room, options) {}

Session BeamSession::open(const BeamRoom& room, const BeamOptions& options,
                          Backend& backend) const {
  const std::vector<const Plan*> plans{&plans_.encode, &plans_.decode, &refresh_};
  const int64_t needed = layout_session(plans, backend.runs_at_once()).total_bytes(),
                there = backend.on_host() ? machine_memory_bytes() : backend.memory_bytes();
  auto refusal = [&](const std::string& expected, const std::string& got) {
    return Error({.code = ErrorCode::does_not_fit,
                  .what = "a beam search of so many texts at once does not fit",
                  .where = fmt::format("{} sources at once, {} hypotheses of each",
                                       with_commas(room.sources), with_commas(options.beam)),
                  .expected = expected,
                  .got = got,
                  .remedy = "a smaller --at-once, or a smaller --beam"});
  };
  if (there > 0 && needed > there)
    throw refusal(fmt::format("at most {}, as the machine has", human_bytes(there)),
                  human_bytes(needed));
  try {
    return Session(backend, plans);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
    throw refusal(fmt::format("{} of memory", human_bytes(needed)),
                  fmt::format("{}: {}", error.fields().what, error.fields().got));
  }
}

void check_beam(const BeamOptions& options, int64_t words, int64_t most_tokens,
                const BeamSpelling& spelling) {
  auto refuse = [&](const char* option, const char* what, const std::string& expected,
                    const std::string& got, const std::string& better) {
    throw Error({.code = ErrorCode::config,
                 .what = what,
                 .where = spelling.where(option),
                 .expected = expected,
                 .got = got,
                 .remedy = spelling.with(option, better)});
  };
  if (options.beam < 1)
    refuse("beam", "a search has no hypothesis", "at least 1", std::to_string(options.beam), "4");
  if (options.beam > words)
    refuse("beam", "the beam is wider than the vocabulary",
           fmt::format("at most {} hypotheses", words), std::to_string(options.beam),
           std::to_string(std::min<int64_t>(4, words)));
  if (!(options.length_penalty >= 0 && options.length_penalty <= 10))
    refuse("length-penalty", "the length penalty is no exponent to divide by",
           "a number from 0 to 10", fmt::format("{}", options.length_penalty), "1");
  if (options.no_repeat_ngram < 0)
    refuse("no-repeat-ngram", "no n-gram has a negative length", "0, or tokens in a row",
           std::to_string(options.no_repeat_ngram), "3");
  if (options.min_length < 0 || options.min_length > most_tokens)
    refuse("min-tokens", "a text cannot have so many tokens before it may end",
           fmt::format("0 to {}: no text has more tokens here", most_tokens),
           std::to_string(options.min_length), std::to_string(most_tokens));
}

int64_t sources_at_once(const Backend& backend, const Model& model, int64_t beam) {
  const int64_t most = sources_at_once(backend);
  if (model.takes().pairs) return most;
  // With 128 tokens and a beam of 4 as many as of pairs.
  return std::clamp<int64_t>(most * 512 / (beam * model.max_lengths().target), 1, most);
}

BeamSource source_to_copy(const Tokenizer& tokenizer, std::string_view text, const TextPlace& place,
                          std::vector<std::string>& rare) {
  BeamSource source;
  tokenizer.encode_extended(text, place, rare, source.open);
  source.open.push_back(tokenizer.end_id());
  source.ids = source.open;
  for (int32_t& id : source.ids)
    if (id >= tokenizer.vocab_size()) id = tokenizer.unknown_id();
  return source;
}

std::vector<int32_t> BeamSearch::encode(std::span<const BeamSource> sources) {
  const auto E = static_cast<size_t>(room_.sources), S = static_cast<size_t>(room_.max_source);
  MR_CHECK(sources.size() <= E, "{} sources for {}", sources.size(), E);
  std::vector<int32_t> ids(E * S), lengths(E, 1);
  for (size_t e = 0; e < sources.size(); ++e) {
    const std::vector<int32_t>& source = sources[e].ids;
    MR_CHECK(!source.empty() && (!copies_ || sources[e].open.size() == source.size()),
             "a source of {} and {} tokens", source.size(), sources[e].open.size());
    const size_t length = std::min(S, source.size());
    std::copy_n(source.begin(), length, ids.begin() + static_cast<std::ptrdiff_t>(e * S));
    lengths[e] = static_cast<int32_t>(length);
  }
  session_.write_input<int32_t>(encode_, "source", ids);
  session_.write_input<int32_t>(encode_, "source_lengths", lengths);
  if (session_.has(kBeamSources)) {
    const auto K = static_cast<size_t>(options_.beam);
    std::vector<int32_t> of_row(E * K);
    for (size_t r = 0; r < of_row.size(); ++r) of_row[r] = static_cast<int32_t>(r / K);
    session_.write_input<int32_t>(encode_, kBeamSources, of_row);
  }
  session_.run(encode_);
  return lengths;
}

std::vector<std::vector<int32_t>> BeamSearch::read(std::span<const BeamSource> sources) {
  const auto E = static_cast<size_t>(room_.sources);
  MR_CHECK(sources.size() <= E, "{} prompts for {}", sources.size(), E);
  std::vector<std::vector<int32_t>> prompts;
  size_t most = 0;
  for (const BeamSource& source : sources) {
    MR_CHECK(!source.ids.empty(), "an empty prompt");
    const int64_t kept = prompt_kept(std::ssize(source.ids), positions_);
    MR_CHECK(kept <= room_.max_source, "a prompt of {} tokens for {}", kept, room_.max_source);
    prompts.emplace_back(source.ids.end() - kept, source.ids.end());
    most = std::max(most, prompts.back().size());
  }
  const auto T = static_cast<size_t>(prefill_chunk(room_.max_source));
  std::vector<int32_t> chunk(E * T);
  for (size_t from = 0; from + 1 < most; from += T) {
    // What fills up a row stands behind its prompt, where nobody sees it before it is overwritten.
    std::fill(chunk.begin(), chunk.end(), 0);
    for (size_t e = 0; e < prompts.size(); ++e)
      for (size_t t = 0; t < T && from + t + 1 < prompts[e].size(); ++t)
        chunk[e * T + t] = prompts[e][from + t];
    session_.write_input<int32_t>(encode_, prompt_leaf(static_cast<int64_t>(T)), chunk);
    session_.write_input<int32_t>(encode_, "position",
                                  std::vector<int32_t>(E, static_cast<int32_t>(from)));
    session_.run(encode_);
  }
  return prompts;
}

std::vector<Hypothesis> BeamSearch::search(std::span<const BeamSource> sources,
                                           const TargetTokens& tokens) {
  const auto E = static_cast<size_t>(room_.sources), K = static_cast<size_t>(options_.beam),
             R = E * K, S = static_cast<size_t>(room_.max_source),
             C = static_cast<size_t>(capacity_);
  std::vector<int32_t> last(R, tokens.start), rows(R), history(R * C), moved(R * C);
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<int32_t> parents = rows, lengths, positions(R);
  session_.write_input<int32_t>(decode_, "prompt_row", rows);
  std::vector<Search> searches;
  auto begin_search = [&](int64_t most) {
    searches.emplace_back(options_, tokens, most, copies_ ? tokens.unknown : -1);
  };
  if (prompts_) {
    const auto prompts = read(sources);
    for (size_t e = 0; e < prompts.size(); ++e) {
      const auto before = static_cast<int32_t>(prompts[e].size()) - 1;
      begin_search(std::min(room_.max_length, capacity_ - before));
      for (size_t r = e * K; r < (e + 1) * K; ++r) {
        last[r] = prompts[e].back();
        positions[r] = before;
        // It stands in the first row of its source.
        std::fill_n(history.begin() + static_cast<std::ptrdiff_t>(r * C), before,
                    static_cast<int32_t>(e * K));
      }
    }
  } else {
    lengths = encode(sources);
    for (size_t e = 0; e < sources.size(); ++e) begin_search(room_.max_length);
  }
  std::vector<int32_t> attended = lengths;
  // A column of the probabilities is a word of the vocabulary, or behind it a rare one of a source.
  const int32_t count = static_cast<int32_t>(tokens.count), V = vocabulary_;
  auto word_of = [&](int32_t column) { return column < V ? column : column - V + count; };
  if (copies_) {
    std::vector<int32_t> columns(E * S, -1);
    for (size_t e = 0; e < sources.size(); ++e)
      for (size_t i = 0; i < static_cast<size_t>(lengths[e]); ++i) {
        const int32_t word = sources[e].open[i];
        columns[e * S + i] = word < count ? word : word - count + V;
      }
    session_.write_input<int32_t>(decode_, kBeamColumns, columns);
  }
  for (int64_t step = 0; step < room_.max_length; ++step) {
    session_.write_input<int32_t>(decode_, prompt_leaf(1), last);
    session_.write_input<int32_t>(decode_, "position", positions);
    if (K > 1) {
      session_.write_input<int32_t>(decode_, kBeamParents, parents);
      session_.write_input<int32_t>(decode_, kBeamHistory, history);
    }
    session_.run(decode_);
    const std::vector<float> best = session_.output(decode_, "best");
    const std::vector<int32_t> best_words = session_.integer_output(decode_, "best_words");
    std::vector<float> probabilities;
    const size_t B = best.size() / R;
    parents = rows;
    bool all_done = true;
    for (size_t e = 0; e < searches.size(); ++e) {
      Search& s = searches[e];
      if (s.done()) continue;
      using Offers = std::function<std::vector<Offer>(size_t)>;
      // Columns between the tokenizer's words and the model's are no words.
      auto add = [&](std::vector<Offer>& offers, float probability, int32_t column) {
        if (column < count || column >= V) offers.push_back({probability, word_of(column)});
      };
      const Offers likeliest = [&](size_t k) {
        std::vector<Offer> offers;
        for (size_t i = (e * K + k) * B; i < (e * K + k + 1) * B; ++i)
          add(offers, best[i], best_words[i]);
        return offers;
      };
      const Offers all = [&](size_t k) {
        if (probabilities.empty()) probabilities = session_.output(decode_, "probabilities");
        const size_t columns = probabilities.size() / R;
        std::vector<Offer> offers;
        for (size_t c = 0; c < columns; ++c)
          add(offers, probabilities[(e * K + k) * columns + c], static_cast<int32_t>(c));
        return offers;
      };
      s.grow(step, likeliest, all);
      for (size_t k = 0; k < s.live(); ++k) {
        parents[e * K + k] = static_cast<int32_t>(e * K + s.parent(k));
        last[e * K + k] = s.last(k) < tokens.count ? s.last(k) : tokens.unknown;
      }
      // A source that waits for the others costs no attention.
      if (s.done() && !attended.empty()) attended[e] = 0;
      all_done = all_done && s.done();
    }
    if (all_done) break;
    if (!attended.empty()) session_.write_input<int32_t>(decode_, "source_lengths", attended);
    // The token of this step stands in the row that it was put into.
    for (size_t r = 0; r < R; ++r) history[r * C + static_cast<size_t>(positions[r])] = rows[r];
    for (size_t r = 0; r < R; ++r)
      std::copy_n(
          history.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(parents[r]) * C), C,
          moved.begin() + static_cast<std::ptrdiff_t>(r * C));
    history.swap(moved);
    for (size_t r = 0; r < R; ++r) {
      const bool waits = r / K >= searches.size() || searches[r / K].done();
      positions[r] = waits ? 0 : positions[r] + 1;
    }
  }
  std::vector<Hypothesis> found;
  for (Search& s : searches) found.push_back(s.best());
  return found;
}

}  // namespace millrace
