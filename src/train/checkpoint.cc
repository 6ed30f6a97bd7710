#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "core/text.h"
#include "io/safetensors.h"
#include "model/tuning.h"
#include "train/weights.h"

namespace millrace {
namespace {

constexpr const char* kPrefix = "checkpoint-";
constexpr const char* kStaged = ".tmp-";
constexpr const char* kRemoved = ".del-";
constexpr const char* kReplaced = ".old-";
constexpr const char* kMaster = "parameter.";  // master weights beside averaged ones
constexpr const char* kAverage = "ema.";
constexpr int64_t kPiece = 1 << 18;  // floats: what is read and written at a time

// The step of "checkpoint-120", or -1.
int64_t step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  const std::string_view prefix = kPrefix;
  int64_t step = -1;
  if (!name.starts_with(prefix) || name.size() > prefix.size() + 18) return -1;
  const char *first = name.data() + prefix.size(), *last = name.data() + name.size();
  const auto [end, error] = std::from_chars(first, last, step);
  return error == std::errc() && end == last && first != last ? step : -1;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> list;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    list.push_back(entry->path());
  return list;
}

bool is_better(double a, double b, bool larger) { return larger ? a > b : a < b; }

}  // namespace

std::vector<std::string> state_leaves(const Plan& step) {
  std::vector<std::string> names;
  for (const Node& n : step.graph.nodes)
    if (n.leaf == Leaf::parameter || n.leaf == Leaf::optimizer_state) names.push_back(n.name);
  return names;
}

std::vector<float> StateTensor::values() const {
  std::vector<float> all(static_cast<size_t>(shape.numel()));
  read(0, all);
  return all;
}

std::map<std::string, StateTensor> state_tensors(const Session& session, const Plan& step) {
  std::map<std::string, StateTensor> tensors;
  for (const std::string& leaf : state_leaves(step))
    tensors[leaf] = {session.type(leaf).shape,
                     [&session, leaf](int64_t begin, std::span<float> out) {
                       session.read_part<float>(leaf, begin, out);
                     }};
  return tensors;
}

namespace {

TensorToWrite as_it_stands(std::string name, std::vector<int64_t> shape,
                           const StateTensor& tensor) {
  return {std::move(name), "F32", std::move(shape), {}, [&tensor](const TensorToWrite::Put& put) {
            const int64_t numel = tensor.shape.numel();
            std::vector<float> piece(static_cast<size_t>(std::min(numel, kPiece)));
            for (int64_t begin = 0; begin < numel; begin += kPiece) {
              const auto count = static_cast<size_t>(std::min(kPiece, numel - begin));
              const auto part = std::span(piece).first(count);
              tensor.read(begin, part);
              put(std::as_bytes(part));
            }
          }};
}

FileDigest flush(OutputFile& file) {
  file.sync();
  file.close();
  return file.digest();
}

}  // namespace

void write_checkpoint_files(const fs::path& folder, const CheckpointContent& content,
                            const Model& model, std::map<std::string, FileDigest>* digests,
                            const std::function<void()>& state_read) {
  std::set<std::string> names;
  std::vector<TensorToWrite> list;
  const auto parameters = model.parameters();
  const bool additions = has_adapters(model);  // alone: what they add to stands elsewhere
  for (const Parameter& p : parameters) {
    names.insert(p.name);
    if (additions && !p.adapter) continue;
    const auto average = content.tensors.find(kAverage + p.name);
    const StateTensor& tensor =
        average != content.tensors.end() ? average->second : content.tensors.at(p.name);
    for (size_t part = 0; part < p.parts(); ++part) {
      if (same_layout(p))
        list.push_back(as_it_stands(p.external_name(part), external_shape(p, part), tensor));
      else  // laid out when its turn comes: one at a time
        list.push_back({p.external_name(part),
                        "F32",
                        external_shape(p, part),
                        {},
                        [&p, &tensor, part](const TensorToWrite::Put& put) {
                          const auto values = external_part(p, part, tensor.values());
                          put(std::as_bytes(std::span(values)));
                        }});
    }
  }
  const char* const weights_name = model_file_names(model).weights;
  OutputFile weights(folder / weights_name, OutputFile::Mode::truncate);
  write_safetensors(weights, list, {{"format", "pt"}});

  list.clear();
  for (const auto& [name, tensor] : content.tensors) {
    const bool parameter = names.contains(name);
    if (name.starts_with(kAverage)) continue;
    if (parameter && !content.tensors.contains(kAverage + name)) continue;  // is in the model
    list.push_back(as_it_stands(parameter ? kMaster + name : name,
                                {tensor.shape.begin(), tensor.shape.end()}, tensor));
  }
  OutputFile moments(folder / "optimizer.safetensors", OutputFile::Mode::truncate);
  write_safetensors(moments, list, {{"format", "millrace"}});
  if (state_read) state_read();
  (*digests)[weights_name] = flush(weights);
  (*digests)["optimizer.safetensors"] = flush(moments);
  for (const auto& [name, text] : content.texts)
    (*digests)[name] = write_new_file(folder / name, text);
}

void load_checkpoint_tensors(const fs::path& folder, const Plan& step, Session& session,
                             const Model& model) {
  const SafetensorsFile file(folder / "optimizer.safetensors");
  const auto leaves = state_leaves(step);
  auto read = [&](const std::string& leaf, const std::string& name) {
    const auto* entry = file.find(name);
    const int64_t expected = session.type(leaf).numel();
    if (!entry || entry->numel() != expected)
      throw Error(
          {.code = ErrorCode::failure,
           .what = "tensor " + name + (entry ? " has another size" : " is missing"),
           .where = file.path().string(),
           .expected = fmt::format("{} numbers", expected),
           .got = entry ? fmt::format("{}", entry->numel()) : "nothing",
           .remedy = "resume with the model and the optimizer the checkpoint was made with"});
    session.write<float>(leaf, file.to_f32(*entry));
  };
  bool averaged = false;
  std::map<std::string, bool> trained;  // by parameter
  for (const Parameter& p : model.parameters()) trained[p.name] = p.trained;
  for (const std::string& leaf : leaves) averaged = averaged || leaf.starts_with(kAverage);
  load_model(folder, session, model, averaged ? kAverage : "");
  for (const std::string& leaf : leaves) {
    if (leaf.starts_with(kAverage)) continue;
    const auto parameter = trained.find(leaf);
    if (parameter == trained.end())
      read(leaf, leaf);
    else if (averaged && parameter->second)
      read(leaf, kMaster + leaf);
  }
}

void CheckpointStore::sweep() const {
  for (const fs::path& path : entries(folder_)) {
    const std::string name = path.filename().string();
    if (name.starts_with(kReplaced)) {
      // Put back when the writer died between taking it away and putting the new one in its place.
      const fs::path home = folder_ / (kPrefix + name.substr(std::string_view(kReplaced).size()));
      if (!fs::exists(home)) {
        rename_path(path, home);
        continue;
      }
    }
    if (name.starts_with(kStaged) || name.starts_with(kRemoved) || name.starts_with(kReplaced))
      remove_folder(path);
  }
}

std::vector<fs::path> CheckpointStore::list() const {
  std::vector<fs::path> found;
  for (const fs::path& path : entries(folder_))
    if (step_of(path) >= 0) found.push_back(path);
  std::sort(found.begin(), found.end(),
            [](const fs::path& a, const fs::path& b) { return step_of(a) > step_of(b); });
  return found;
}

std::optional<FoundCheckpoint> CheckpointStore::newest(
    const std::function<void(const std::string&)>& damaged) const {
  for (const fs::path& path : list()) {
    try {
      return FoundCheckpoint{path, verify_folder(path)};
    } catch (const Error& error) {
      damaged(fmt::format("{} cannot be used: {}", path.string(), error.what()));
    }
  }
  return std::nullopt;
}

std::optional<FoundCheckpoint> CheckpointStore::best(const std::string& metric,
                                                     bool larger_is_better) const {
  std::optional<FoundCheckpoint> best;
  for (const fs::path& path : list()) {
    try {
      FoundCheckpoint found{path, verify_folder(path)};
      if (!found.manifest.metric || found.manifest.metric_name != metric) continue;
      if (!best || is_better(*found.manifest.metric, *best->manifest.metric, larger_is_better))
        best = std::move(found);
    } catch (const Error&) {
      // Damaged: not a candidate. newest() tells about it.
    }
  }
  return best;
}

fs::path CheckpointStore::commit(const CheckpointContent& content, const Model& model,
                                 const std::function<void()>& state_read) const {
  const int64_t step = content.manifest.step;
  const fs::path staged = folder_ / fmt::format("{}{}", kStaged, step),
                 final = folder_ / fmt::format("{}{}", kPrefix, step),
                 replaced = folder_ / fmt::format("{}{}", kReplaced, step);
  std::error_code ignored;
  try {
    create_folders(folder_);
    if (fs::exists(staged)) remove_folder(staged);
    create_folders(staged);
    Manifest manifest = content.manifest;
    write_checkpoint_files(staged, content, model, &manifest.files, state_read);
    write_new_file(staged / kManifestName, manifest_text(manifest));
    sync_folder(staged);
    // The same step again: after a roll-back, or when validation was cut off and made up for. The
    // older state is not the run's any more.
    if (fs::exists(final)) rename_path(final, replaced);
    rename_path(staged, final);
    sync_folder(folder_);
    if (fs::exists(replaced)) remove_folder(replaced);
  } catch (const Error& error) {
    try {
      if (fs::exists(staged)) remove_folder(staged);
      if (fs::exists(replaced) && !fs::exists(final)) rename_path(replaced, final);
    } catch (const Error&) {
      // sweep() of the next start tries again.
    }
    int64_t needed = 1 << 16;
    for (const auto& [name, tensor] : content.tensors)
      needed += tensor.shape.numel() * static_cast<int64_t>(sizeof(float));
    ErrorFields fields = error.fields();
    const fs::space_info space = fs::space(folder_, ignored);
    fields.what = fmt::format("checkpoint-{} was not saved: {}", step, fields.what);
    fields.expected = fmt::format("room for about {} ({} bytes)", human_bytes(needed), needed);
    if (!ignored)
      fields.got = fmt::format("{} free", human_bytes(static_cast<int64_t>(space.available)));
    throw Error(std::move(fields));
  }
  return final;
}

void CheckpointStore::retain(int64_t last, int64_t best, const std::string& metric,
                             bool larger_is_better) const {
  struct Candidate {
    fs::path path;
    std::optional<double> value;
    bool keep;
  };
  std::vector<Candidate> candidates;
  for (const fs::path& path : list()) {
    try {
      const Manifest m = parse_manifest(read_file(path / kManifestName, 1 << 20), path.string());
      candidates.push_back({path, m.metric_name == metric ? m.metric : std::nullopt,
                            static_cast<int64_t>(candidates.size()) < last});
    } catch (const Error&) {
      // Damaged: neither counted nor removed; a person may want to look at it.
    }
  }
  std::vector<Candidate*> measured;
  for (Candidate& c : candidates)
    if (c.value) measured.push_back(&c);
  std::stable_sort(measured.begin(), measured.end(), [&](const Candidate* a, const Candidate* b) {
    return is_better(*a->value, *b->value, larger_is_better);
  });
  for (size_t i = 0; i < std::min(measured.size(), static_cast<size_t>(best)); ++i)
    measured[i]->keep = true;
  for (const Candidate& c : candidates) {
    if (c.keep) continue;
    const fs::path removed = folder_ / (kRemoved + c.path.filename().string());
    if (fs::exists(removed)) remove_folder(removed);
    rename_path(c.path, removed);
    remove_folder(removed);
  }
}

BackgroundSaver::BackgroundSaver(Save save, Done done)
    : save_(std::move(save)), done_(std::move(done)), thread_([this] { work(); }) {}

BackgroundSaver::~BackgroundSaver() {
  wait_while({Phase::reading, Phase::flushing});
  enter(Phase::ending);
  thread_.join();
}

bool BackgroundSaver::is_reading() const { return phase_ == Phase::reading; }

void BackgroundSaver::start(CheckpointContent content) {
  wait();
  content_ = std::move(content);
  enter(Phase::reading);
}

void BackgroundSaver::wait_until_read() { wait_while({Phase::reading}); }

void BackgroundSaver::poll() {
  if (phase_ != Phase::finished) return;
  phase_ = Phase::idle;
  done_(content_.manifest.step, error_ ? &*error_ : nullptr);
}

void BackgroundSaver::wait() {
  wait_while({Phase::reading, Phase::flushing});
  poll();
}

void BackgroundSaver::enter(Phase phase) {
  {
    const std::lock_guard lock(mutex_);
    phase_ = phase;
  }
  changed_.notify_all();
}

void BackgroundSaver::wait_while(std::initializer_list<Phase> phases) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock,
                [&] { return std::find(phases.begin(), phases.end(), phase_) == phases.end(); });
}

void BackgroundSaver::work() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return phase_ == Phase::reading || phase_ == Phase::ending; });
      if (phase_ == Phase::ending) return;
    }
    error_.reset();
    try {
      save_(content_, [this] { enter(Phase::flushing); });
    } catch (const Error& e) {
      error_ = e;
    } catch (const std::exception& e) {
      error_ = Error({.what = std::string("the checkpoint was not saved: ") + e.what()});
    }
    enter(Phase::finished);
  }
}

}  // namespace millrace
