#include "io/weight_folder.h"

#include "core/error.h"
#include "io/json_parser.h"
#include "io/quote.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxFiles = 10'000;  // each is mapped at the same time as the others
constexpr int kMaxDepth = 20;         // a nested value takes many times its bytes

Error damaged(const std::string& where, const std::string& expected, const std::string& got) {
  return Error({.code = ErrorCode::failure,
                .what = "the index of the weights is damaged",
                .where = where,
                .expected = expected,
                .got = got,
                .remedy = "fetch or write the folder again"});
}

std::string place(const std::string& index, const std::string& tensor) {
  return index + ": `weight_map`: " + quote(tensor);
}

}  // namespace

std::map<std::string, std::string> parse_weight_index(std::string_view text,
                                                      const std::string& where) {
  Json root;
  try {
    root = parse_json(text, [&](int depth, Json::parse_event_t, Json&) {
      if (depth > kMaxDepth)
        throw damaged(where, fmt::format("at most {} levels", kMaxDepth), "more");
      return true;
    });
  } catch (const Json::exception& e) {
    throw damaged(where, "JSON", quote(e.what(), 200));
  }
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (map == root.end() || !map->is_object())
    throw damaged(where, "an object `weight_map`", "none");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string())
      throw damaged(place(where, tensor), "the name of a file", file.type_name());
    const auto& name = file.get_ref<const std::string&>();
    // A plain name: the weights of a folder are in the folder.
    if (!name.ends_with(".safetensors") || name.find('/') != name.npos || name.starts_with('.') ||
        printable(name, name.size()) != name)
      throw damaged(place(where, tensor), "the name of a .safetensors file in this folder",
                    quote(name));
    files.emplace(tensor, name);
  }
  return files;
}

WeightFolder::WeightFolder(const fs::path& folder) : path_(folder / "model.safetensors") {
  if (fs::exists(path_)) {
    files_.push_back(std::make_unique<SafetensorsFile>(path_));
    return;
  }
  const fs::path index = folder / "model.safetensors.index.json";
  if (!fs::exists(index))
    throw Error({.code = ErrorCode::config,
                 .what = "the folder has no weights",
                 .where = folder.string(),
                 .expected = "model.safetensors or model.safetensors.index.json",
                 .got = "neither",
                 .remedy = "name a checkpoint or a Hugging Face folder with safetensors weights"});
  path_ = index;
  read_index(folder);
}

void WeightFolder::read_index(const fs::path& folder) {
  const std::string where = path_.string();
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [tensor, name] : parse_weight_index(read_file(path_, kMaxIndexBytes), where)) {
    const SafetensorsFile*& at = opened[name];
    if (!at) {
      if (opened.size() > kMaxFiles)
        throw damaged(where, fmt::format("at most {} files", kMaxFiles), "more");
      if (!fs::exists(folder / name))
        throw Error(
            {.code = ErrorCode::failure,
             .what = "a file of the weights is missing",
             .where = (folder / name).string(),
             .expected = fmt::format("the file that {} has tensor {} in", where, quote(tensor)),
             .got = "nothing there",
             .remedy = "fetch the whole folder again"});
      files_.push_back(std::make_unique<SafetensorsFile>(folder / name));
      at = files_.back().get();
    }
    if (!at->find(tensor))
      throw damaged(place(where, tensor), "a tensor of " + quote(name), "not in that file");
    file_of_[tensor] = at;
  }
  // Which of two the index names may be either: they need not be the same.
  std::map<std::string_view, const SafetensorsFile*> first;
  for (const auto& file : files_)
    for (const auto& entry : file->entries())
      if (const auto [at, is_new] = first.emplace(entry.name, file.get()); !is_new)
        throw damaged(where + ": tensor " + quote(entry.name), "each tensor in one file",
                      fmt::format("in {} and {}", quote(at->second->path().filename().string()),
                                  quote(file->path().filename().string())));
}

std::vector<std::string> WeightFolder::names() const {
  std::vector<std::string> list;
  for (const auto& file : files_)
    for (const auto& entry : file->entries()) list.push_back(entry.name);
  return list;
}

WeightFolder::Found WeightFolder::find(std::string_view name) const {
  const SafetensorsFile* file = nullptr;
  if (const auto at = file_of_.find(name); at != file_of_.end())
    file = at->second;
  else if (file_of_.empty() && files_.size() == 1)
    file = files_.front().get();
  const auto* entry = file ? file->find(name) : nullptr;
  return entry ? Found{file, entry} : Found{};
}

}  // namespace millrace
