#include "data/record_reader.h"

#include <algorithm>

#include "core/rng.h"
#include "core/text.h"
#include "io/quote.h"
#include "io/token_file.h"
#include "io/utf8.h"

namespace millrace {
namespace {

constexpr size_t kBlock = 1 << 18;  // large enough to make handing over cheap, small in memory
constexpr size_t kLongestUncut = size_t{1} << 30;

constexpr const char *kUtf8Remedy =
                         "convert the text to UTF-8 (from Latin-1: iconv -f LATIN1 -t UTF-8), or "
                         "use data.tokenizer=byte",
                     *kUtf8RecordRemedy =
                         "convert the file to UTF-8 (from Latin-1: iconv -f LATIN1 -t UTF-8), or "
                         "pass over such records with data.on_bad_record=skip";

bool starts_character(char c) { return (c & 0xC0) != 0x80; }

size_t behind_last_character(std::string_view text) {
  size_t at = text.size();
  while (at > 0 && !starts_character(text[at - 1])) --at;
  return at > 0 ? at - 1 : 0;
}

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == text.npos; }

}  // namespace

std::string_view split_name(SplitName split) {
  constexpr std::array<std::string_view, kSplits> names = {"train", "validation", "test"};
  return names[static_cast<size_t>(split)];
}

TextPlace RecordBlock::place(size_t field) const {
  const Field& f = fields[field];
  const bool target = !target_file.empty() && field % 2 == 1;
  return {target ? target_file : file, f.line, f.column, f.byte, f.form};
}

RecordReader::RecordReader(RecordOptions options, std::vector<SplitFiles> sources)
    : options_(std::move(options)), sources_(std::move(sources)), cut_(behind_last_character) {
  for (size_t i = 0; i < kSplits; ++i) open_[i].split = static_cast<SplitName>(i);
}

int64_t RecordReader::file_bytes_read() const {
  return bytes_done_ + (stream_    ? stream_->file_bytes_read()
                        : records_ ? records_->file_bytes_read()
                                   : 0);
}

bool RecordReader::next(RecordBlock& block) {
  block.text.clear();
  block.fields.clear();
  if (!has_records(options_.format)) return next_piece(block);
  while (ready_.empty()) {
    if (!records_ && !open_record_file()) return false;
    read_record();
  }
  std::swap(block, ready_.front());
  ready_.erase(ready_.begin());
  return true;
}

int64_t RecordReader::characters(std::string_view text) const {
  return options_.count_bytes ? std::ssize(text)
                              : std::count_if(text.begin(), text.end(), starts_character);
}

size_t RecordReader::within_limit(std::string_view text) {
  if (!in_training() || options_.max_chars == 0) return text.size();
  size_t end = 0;
  for (; end < text.size(); ++end) {
    if (!options_.count_bytes && !starts_character(text[end])) continue;
    if (training_chars_ == options_.max_chars) break;
    ++training_chars_;
  }
  full_ = full_ || end < text.size();
  return end;
}

// Behind the last file of a split: what was found in them?
void RecordReader::close_source() {
  const SplitFiles& source = sources_[source_++];
  file_ = 0;
  const RecordCounts before = std::exchange(before_, counts_);
  const bool records = has_records(options_.format);
  const bool found = records ? counts_.records != before.records : counts_.chars != before.chars;
  if (found || source.files.empty()) return;
  const int64_t bad = counts_.bad - before.bad, empty = counts_.empty - before.empty;
  std::string got = "none";
  if (bad > 0) got += fmt::format("; {} bad ones were passed over", with_commas(bad));
  if (empty > 0) got += fmt::format("; {} are empty", with_commas(empty));
  if (full_ && source.split == SplitName::train)
    got += fmt::format("; the first is longer than data.max_chars {}", options_.max_chars);
  const std::string key = fmt::format("data.{}", split_name(source.split));
  throw config_error(fmt::format("nothing to read in {}", file_names(source.files)), key,
                     records ? "at least one record" : "a text that is not empty", got,
                     bad > 0 ? "data.on_bad_record=error says what is wrong with the first"
                             : fmt::format("leave it out of {}, or put something into it", key));
}

// --- long texts

bool RecordReader::open_text() {
  while (source_ < sources_.size()) {
    const SplitFiles& source = sources_[source_];
    const bool limit = full_ && in_training();
    if (!limit && file_ == 0 && !source.text.empty()) {
      pending_ = source.text;
      place_ = {source.text_name};
      ++file_;
      return true;
    }
    if (!limit && file_ < source.files.size()) {
      const fs::path& path = source.files[file_++];
      if (options_.is_plain_text()) {
        auto text = std::make_unique<PlainText>(path);
        plain_ = text.get();
        stream_ = std::move(text);
      } else {
        stream_ = open_byte_stream(path);
      }
      pending_.clear();
      place_ = {path.string()};
      if (options_.format == DataFormat::tokens) skip_token_header(path);
      return true;
    }
    close_source();
  }
  return false;
}

void RecordReader::skip_token_header(const fs::path& path) {
  pending_.resize(kTokenHeaderBytes);
  pending_.resize(stream_->read(pending_));
  const TokenFileHeader header =
      read_token_header(std::as_bytes(std::span(pending_)), stamp_of(path).bytes,
                        options_.token_width, path.string());
  pending_.erase(0, static_cast<size_t>(header.offset));
  place_.byte = header.offset;
  token_width_ = header.width;
}

// The next piece of the text at hand: as much as may be cut off, or all that is left.
bool RecordReader::next_piece(RecordBlock& block) {
  if (place_.file.empty() && !open_text()) return false;
  size_t cut = 0;
  bool ended = false;
  for (size_t step = kBlock; cut == 0 && !ended; step *= 2) {
    if (stream_) {
      const size_t before = pending_.size();
      pending_.resize(before + step);
      const size_t got = stream_->read(std::span(pending_).subspan(before));
      pending_.resize(before + got);
      ended = got < step;
    } else {
      ended = true;  // a text in memory is one piece: there is no more to read
    }
    cut = ended              ? pending_.size()
          : token_width_ > 0 ? pending_.size() / static_cast<size_t>(token_width_) *
                                   static_cast<size_t>(token_width_)
                             : cut_(pending_);
    if (cut == 0 && pending_.size() > kLongestUncut)
      throw Error({.code = ErrorCode::config,
                   .what = "a text that cannot be cut into pieces",
                   .where = fmt::format("{} (byte {})", place_.file, place_.byte),
                   .expected = fmt::format("a place to cut within {}", human_bytes(kLongestUncut)),
                   .got = "none that this tokenizer allows",
                   .remedy = "give several smaller files"});
  }
  const size_t used = within_limit(std::string_view(pending_).substr(0, cut));
  const bool closes = ended || full_;
  block.split = sources_[source_].split;
  block.text.assign(pending_, 0, used);
  if (token_width_ == 0 && !options_.any_bytes) {
    if (stream_ && place_.byte == 0) refuse_utf16(pending_, place_.file);
    if (const auto fault = utf8_fault(block.text, place_, kUtf8Remedy)) throw Error(*fault);
  }
  counts_.chars[static_cast<size_t>(block.split)] += characters(block.text);
  block.fields.push_back({used, place_.line, place_.column, place_.byte, place_.form});
  block.file = place_.file;
  block.token_width = token_width_;
  block.closes = closes;
  if (closes) {
    counts_.records[static_cast<size_t>(block.split)] += 1;
    if (stream_) bytes_done_ += stream_->file_bytes_read();
    if (plain_) {
      plain_text_.files += plain_->had_mark() || plain_->line_ends() > 0 ? 1 : 0;
      plain_text_.line_ends += plain_->line_ends();
      plain_text_.marks += plain_->had_mark() ? 1 : 0;
    }
    plain_ = nullptr;
    stream_.reset();
    place_.file.clear();
  } else {
    place_.advance(block.text);
    pending_.erase(0, cut);
  }
  return true;
}

// --- records

bool RecordReader::open_record_file() {
  while (source_ < sources_.size()) {
    const SplitFiles& source = sources_[source_];
    if (file_ < source.files.size() && !(full_ && in_training())) {
      records_ = millrace::open_record_file(
          options_.format, source.files[file_],
          source.targets.empty() ? fs::path() : source.targets[file_], options_.fields);
      ++file_;
      return true;
    }
    close_source();
  }
  return false;
}

SplitName drawn_split(const RecordOptions& options, SplitName from, int64_t number) {
  if (from != SplitName::train || options.validation_fraction + options.test_fraction <= 0)
    return from;
  const double draw =
      RandomStream(options.seed, RandomUse::split, static_cast<uint64_t>(number)).uniform();
  if (draw < options.validation_fraction) return SplitName::validation;
  return draw < options.validation_fraction + options.test_fraction ? SplitName::test
                                                                    : SplitName::train;
}

void RecordReader::read_record() {
  const RecordFile::Got got = records_->next(fields_, places_);
  if (got == RecordFile::Got::end) return close_records();
  if (got == RecordFile::Got::bad) return pass_over(records_->fault());
  const auto blank = std::count_if(fields_.begin(), fields_.end(), is_blank);
  if (blank == std::ssize(fields_)) {
    ++counts_.empty;
    return;
  }
  if (blank > 0) return pass_over(half_empty());
  for (size_t i = 0; i < fields_.size() && !options_.any_bytes; ++i)
    if (const auto fault = utf8_fault(fields_[i], places_[i], kUtf8RecordRemedy))
      return pass_over(*fault);
  if (in_training()) {
    for (const std::string& field : fields_) within_limit(field);
    if (full_) return close_records();  // a record that the limit would cut is left out
    full_ = counts_.all_records() + 1 == options_.max_records;
  }
  const int64_t number = counts_.bad + counts_.empty + counts_.all_records();
  const SplitName split = drawn_split(options_, sources_[source_].split, number);
  RecordBlock& open = open_[static_cast<size_t>(split)];
  for (size_t i = 0; i < fields_.size(); ++i) {
    counts_.chars[static_cast<size_t>(split)] += characters(fields_[i]);
    open.text += fields_[i];
    const TextPlace& place = places_[i];
    open.fields.push_back({open.text.size(), place.line, place.column, place.byte, place.form});
  }
  ++counts_.records[static_cast<size_t>(split)];
  if (open.text.size() >= kBlock) give(open);
  if (full_ && in_training()) close_records();
}

void RecordReader::pass_over(const Error& fault) {
  if (!options_.skip_bad) throw Error(fault);
  if (counts_.bad++ == 0) counts_.first_bad = fault.what();
}

Error RecordReader::half_empty() const {
  const size_t side = is_blank(fields_[0]) ? 0 : 1;
  return Error({.code = ErrorCode::config,
                .what = fmt::format("a pair without a {}", side == 0 ? "source" : "target"),
                .where = fmt::format("{}:{}", places_[side].file, places_[side].line),
                .expected = "text on both sides",
                .got = sources_[source_].targets.empty()
                           ? fmt::format("an empty field {}", quote(options_.fields[side]))
                           : "an empty line",
                .remedy = "mend it, or pass over such pairs with data.on_bad_record=skip"});
}

void RecordReader::close_records() {
  for (RecordBlock& open : open_)
    if (!open.fields.empty()) give(open);
  bytes_done_ += records_->file_bytes_read();
  records_.reset();
}

void RecordReader::give(RecordBlock& open) {
  const SplitName split = open.split;
  const SplitFiles& source = sources_[source_];
  open.file = source.files[file_ - 1].string();
  if (!source.targets.empty()) open.target_file = source.targets[file_ - 1].string();
  ready_.push_back(std::move(open));
  open = RecordBlock();
  open.split = split;
}

}  // namespace millrace
