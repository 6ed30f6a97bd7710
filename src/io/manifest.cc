#include "io/manifest.h"

#include <cmath>

#include "core/error.h"
#include "io/json_parser.h"
#include "io/quote.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;
using Parsed = nlohmann::json;  // sorted: an ordered one takes a quadratic time for many keys
constexpr std::string_view kOpening = "{\n  \"checksum\": \"";
constexpr std::string_view kClosing = "\",\n";
constexpr size_t kDigits = 32;
constexpr size_t kMaxBytes = 1 << 20, kMaxFiles = 10'000;
constexpr const char* kRemedy = "resume from an older checkpoint, or copy this one again";

[[noreturn]] void refuse(const std::string& where, const std::string& field,
                         const std::string& expected, const std::string& got) {
  throw Error({.code = ErrorCode::failure,
               .what = "not a valid checkpoint manifest",
               .where = field.empty() ? where : where + ": `" + field + "`",
               .expected = expected,
               .got = got,
               .remedy = kRemedy});
}

// A plain name inside the folder: no path, nothing hidden.
bool is_file_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' && name != kManifestName &&
         name.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
             "._-") == name.npos;
}

bool is_hexadecimal(std::string_view text) {
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

class Reader {
 public:
  Reader(const Parsed& json, const std::string& where) : json_(json), where_(where) {}
  const Parsed& at(const std::string& field) const {
    const auto found = json_.find(field);
    if (found == json_.end()) refuse(where_, field, "a value", "nothing");
    return *found;
  }
  std::string text(const std::string& field) const {
    const Parsed& value = at(field);
    if (!value.is_string()) refuse(where_, field, "a text", quote(value.dump(), 60));
    return value.get<std::string>();
  }
  int64_t count(const std::string& field) const {
    const Parsed& value = at(field);
    if (!value.is_number_integer() || value < 0 || value > int64_t{1} << 60)
      refuse(where_, field, "a whole number, 0 or more", quote(value.dump(), 60));
    return value.get<int64_t>();
  }

 private:
  const Parsed& json_;
  const std::string& where_;
};

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  Json body = {{"format", Manifest::kFormat},
               {"version", manifest.version},
               {"step", manifest.step},
               {"plan", manifest.plan}};
  body["metric"] = nullptr;
  if (manifest.metric)
    body["metric"] = Json{{"name", manifest.metric_name}, {"value", *manifest.metric}};
  body["files"] = Json::object();
  for (const auto& [name, digest] : manifest.files) {
    MR_CHECK(is_file_name(name), "file name {}", name);
    body["files"][name] = {{"bytes", digest.bytes}, {"xxh3", digest.xxh3}};
  }
  const std::string rest = body.dump(2).substr(2) + "\n";  // without the opening brace and newline
  return std::string(kOpening) + digest_of(rest).xxh3 + std::string(kClosing) + rest;
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const size_t head = kOpening.size() + kDigits + kClosing.size();
  if (text.size() > kMaxBytes) refuse(where, "", "at most 1 MiB", "more");
  if (text.size() < head || !text.starts_with(kOpening) ||
      text.substr(kOpening.size() + kDigits, kClosing.size()) != kClosing)
    refuse(where, "checksum", "a checksum in the first lines", quote(text.substr(0, 60)));
  const std::string_view said = text.substr(kOpening.size(), kDigits), rest = text.substr(head);
  if (const std::string is = digest_of(rest).xxh3; said != is)
    refuse(where, "checksum", is + ", by what the file holds", quote(said));
  // From here on the bytes are as some program wrote them; that program may still be another one.
  Parsed json;
  try {
    // A limit on depth before the parser builds anything: a manifest has three levels.
    json = parse_json("{\n" + std::string(rest), [&](int depth, Parsed::parse_event_t, Parsed&) {
      if (depth > 4) refuse(where, "", "at most four levels", "a deeper nesting");
      return true;
    });
  } catch (const Parsed::exception& error) {
    refuse(where, "", "JSON", quote(error.what(), 200));
  }
  const Reader fields(json, where);
  if (const int64_t format = fields.count("format"); format != Manifest::kFormat)
    throw Error({.code = ErrorCode::failure,
                 .what = "the checkpoint has another format",
                 .where = where + ": `format`",
                 .expected = std::to_string(Manifest::kFormat),
                 .got = fmt::format("{}{}", format, format > Manifest::kFormat ? " (newer)" : ""),
                 .remedy = "use the version of Millrace that wrote it, or a newer one"});
  Manifest m;
  m.version = fields.text("version");
  m.step = fields.count("step");
  m.plan = fields.text("plan");
  if (const Parsed& metric = fields.at("metric"); !metric.is_null()) {
    if (!metric.is_object()) refuse(where, "metric", "a name and a value", "something else");
    const Reader inside(metric, where);
    m.metric_name = inside.text("name");
    const Parsed& value = inside.at("value");
    if (!value.is_number() || !std::isfinite(value.get<double>()))
      refuse(where, "metric.value", "a finite number", quote(value.dump(), 60));
    m.metric = value.get<double>();
  }
  const Parsed& files = fields.at("files");
  if (!files.is_object() || files.size() > kMaxFiles)
    refuse(where, "files", "names with sizes and checksums", "something else");
  for (const auto& [name, entry] : files.items()) {
    if (!is_file_name(name)) refuse(where, "files", "plain file names", quote(name));
    if (!entry.is_object()) refuse(where, "files", "a size and a checksum", quote(name));
    const Reader inside(entry, where);
    FileDigest digest{inside.count("bytes"), inside.text("xxh3")};
    if (!is_hexadecimal(digest.xxh3)) refuse(where, name, "a checksum", quote(digest.xxh3));
    if (!m.files.emplace(name, digest).second) refuse(where, name, "the name once", "twice");
  }
  return m;
}

Manifest verify_folder(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  Manifest manifest = parse_manifest(read_file(path, kMaxBytes), path.string());
  for (const auto& [name, digest] : manifest.files) {
    const fs::path file = folder / name;
    const FileDigest is = digest_of_file(file);
    if (is == digest) continue;
    throw Error({.code = ErrorCode::failure,
                 .what = "a file of the checkpoint is damaged",
                 .where = file.string(),
                 .expected = fmt::format("{} bytes, XXH3 {}", digest.bytes, digest.xxh3),
                 .got = fmt::format("{} bytes, XXH3 {}", is.bytes, is.xxh3),
                 .remedy = kRemedy});
  }
  return manifest;
}

}  // namespace millrace
