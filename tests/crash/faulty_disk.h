// File systems that fail: one whose n-th call is refused, and one that loses power.
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/file.h"

namespace millrace {

// Puts a file system in place while it lives.
class WithFileSystem {
 public:
  explicit WithFileSystem(FileSystem& system) { set_file_system(&system); }
  ~WithFileSystem() { set_file_system(nullptr); }
};

// Refuses call number `at` (from 0), and `times` - 1 more, with `error`; 0 means a short write.
class RefusingFiles : public FileSystem {
 public:
  RefusingFiles(int64_t at, int error, int64_t times = 1) : at_(at), times_(times), error_(error) {}
  int64_t calls() const { return calls_; }
  bool refused() const { return refused_; }

  int open(const char* p, int flags, unsigned mode) override {
    return refuse() ? -1 : FileSystem::open(p, flags, mode);
  }
  ssize_t write(int fd, const void* bytes, size_t count) override {
    if (!refuse(true)) return FileSystem::write(fd, bytes, count);
    // A short write is no error: half now, and the caller must come again.
    if (error_ == 0) return FileSystem::write(fd, bytes, (count + 1) / 2);
    if (count > 1) FileSystem::write(fd, bytes, count / 2);  // some of it may have got there
    return -1;
  }
  int fsync(int) override { return refuse() ? -1 : 0; }
  int close(int fd) override {
    const bool no = refuse();
    FileSystem::close(fd);
    return no ? -1 : 0;
  }
  int truncate(const char* p, int64_t n) override {
    return refuse() ? -1 : FileSystem::truncate(p, n);
  }
  int rename(const char* a, const char* b) override {
    return refuse() ? -1 : FileSystem::rename(a, b);
  }
  int unlink(const char* p) override { return refuse() ? -1 : FileSystem::unlink(p); }
  int mkdir(const char* p) override { return refuse() ? -1 : FileSystem::mkdir(p); }
  int rmdir(const char* p) override { return refuse() ? -1 : FileSystem::rmdir(p); }

 private:
  // With error 0 only writes are touched: everything else answers as it should.
  bool refuse(bool writing = false) {
    const int64_t call = calls_++;
    if (call < at_ || call >= at_ + times_) return false;
    refused_ = true;
    errno = error_;
    return error_ != 0 || writing;
  }
  int64_t at_, times_, calls_ = 0;
  int error_;
  bool refused_ = false;
};

struct PowerOff {};  // thrown by the call at which the power goes

// Does what it is told, and keeps beside it what a disk has promised to hold: the bytes of a file
// as of its last fsync, the entries of a folder as of its last fsync. survivors() writes what a
// power cut may leave: of everything since then a random part, torn and out of order.
class PowerCutDisk : public FileSystem {
 public:
  PowerCutDisk(const fs::path& root, int64_t off_at, std::mt19937_64& random)
      : root_(root.string()), off_at_(off_at), random_(random), top_(std::make_shared<Node>()) {
    top_->folder = true;
  }

  int open(const char* path, int flags, unsigned mode) override {
    tick();
    const int fd = FileSystem::open(path, flags, mode);
    if (fd < 0) return fd;
    auto [parent, name] = place(path);
    if (!parent) {
      descriptors_[fd] = find(path);
      return fd;
    }
    auto& node = parent->entries[name];
    if (!node) {
      node = std::make_shared<Node>();
      parent->changes.push_back({name, node});
    } else if (flags & O_TRUNC) {
      node->writes.push_back({-1, ""});
      node->content.clear();
    }
    descriptors_[fd] = node;
    return fd;
  }
  ssize_t write(int fd, const void* bytes, size_t count) override {
    tick();
    if (Node* node = descriptors_[fd].get()) {
      const std::string text(static_cast<const char*>(bytes), count);
      node->writes.push_back({static_cast<int64_t>(node->content.size()), text});
      node->content += text;
    }
    return FileSystem::write(fd, bytes, count);
  }
  int fsync(int fd) override {
    tick();
    if (Node* node = descriptors_[fd].get()) {
      node->durable = node->content;
      node->writes.clear();
      node->durable_entries = node->entries;
      node->changes.clear();
    }
    return 0;
  }
  int close(int fd) override {
    descriptors_.erase(fd);
    return FileSystem::close(fd);
  }
  int rename(const char* from, const char* to) override {
    tick();
    auto [a, old_name] = place(from);
    auto [b, new_name] = place(to);
    auto node = a->entries[old_name];
    a->entries.erase(old_name);
    b->entries[new_name] = node;
    // One change of the folder: the file system never shows both names or neither.
    b->changes.push_back({new_name, node, old_name});
    return FileSystem::rename(from, to);
  }
  int unlink(const char* path) override { return remove(path, false); }
  int rmdir(const char* path) override { return remove(path, true); }
  int mkdir(const char* path) override {
    tick();
    const int result = FileSystem::mkdir(path);
    if (result != 0) return result;
    auto [parent, name] = place(path);
    if (!parent) return result;
    auto node = std::make_shared<Node>();
    node->folder = true;
    parent->entries[name] = node;
    parent->changes.push_back({name, node});
    return result;
  }

  int64_t calls() const { return calls_; }
  void survivors(const fs::path& into) { write_out(*top_, into); }

 private:
  struct Node;
  using Entries = std::map<std::string, std::shared_ptr<Node>>;
  struct Write {
    int64_t at;  // -1: the file was cut to nothing
    std::string bytes;
  };
  struct Change {
    std::string name;
    std::shared_ptr<Node> node;  // null: removed
    std::string old_name = {};   // of a rename
  };
  struct Node {
    bool folder = false;
    std::string content, durable;
    std::vector<Write> writes;
    Entries entries, durable_entries;
    std::vector<Change> changes;
  };

  void tick() {
    if (calls_++ == off_at_) throw PowerOff();
  }
  int remove(const char* path, bool folder) {
    tick();
    auto [parent, name] = place(path);
    if (parent) {
      parent->entries.erase(name);
      parent->changes.push_back({name, nullptr});
    }
    return folder ? FileSystem::rmdir(path) : FileSystem::unlink(path);
  }
  std::shared_ptr<Node> find(const std::string& path) {
    if (path == root_) return top_;
    auto [parent, name] = place(path);
    return parent && parent->entries.contains(name) ? parent->entries[name] : nullptr;
  }
  // The folder and the name in it; null for the root and what is outside.
  std::pair<Node*, std::string> place(const std::string& path) {
    if (!path.starts_with(root_ + "/")) return {nullptr, ""};
    Node* node = top_.get();
    std::string rest = path.substr(root_.size() + 1);
    for (size_t slash; (slash = rest.find('/')) != rest.npos; rest = rest.substr(slash + 1)) {
      const auto next = node->entries.find(rest.substr(0, slash));
      if (next == node->entries.end()) return {nullptr, ""};
      node = next->second.get();
    }
    return {node, rest};
  }

  // Which of n unflushed operations got to the disk: none, all, the first few, or any.
  std::vector<bool> lucky(size_t n) {
    std::vector<bool> kept(n);
    const auto mood = random_() % 4;
    const size_t prefix = n > 0 ? random_() % (n + 1) : 0;
    for (size_t i = 0; i < n; ++i)
      kept[i] = mood == 0 ? false : mood == 1 ? true : mood == 2 ? i < prefix : random_() % 2 == 0;
    return kept;
  }
  void write_out(const Node& node, const fs::path& path) {
    if (node.folder) {
      fs::create_directories(path);
      Entries entries = node.durable_entries;
      const auto kept = lucky(node.changes.size());
      for (size_t i = 0; i < kept.size(); ++i) {
        const Change& c = node.changes[i];
        if (!kept[i]) continue;
        if (!c.old_name.empty()) entries.erase(c.old_name);
        if (c.node)
          entries[c.name] = c.node;
        else
          entries.erase(c.name);
      }
      for (const auto& [name, child] : entries) write_out(*child, path / name);
      return;
    }
    std::string bytes = node.durable;
    const auto kept = lucky(node.writes.size());
    for (size_t i = 0; i < kept.size(); ++i) {
      const Write& w = node.writes[i];
      if (!kept[i]) continue;
      if (w.at < 0) {
        bytes.clear();
        continue;
      }
      // Torn at a sector: what did not arrive is zero, or not there at all.
      std::string part = w.bytes;
      if (random_() % 2) part.resize(std::min<size_t>(part.size(), random_() % 8 * 512));
      const auto at = static_cast<size_t>(w.at);
      if (bytes.size() < at + part.size()) bytes.resize(at + part.size(), '\0');
      bytes.replace(at, part.size(), part);
    }
    std::ofstream(path, std::ios::binary) << bytes;
  }

  std::string root_;
  int64_t off_at_, calls_ = 0;
  std::mt19937_64& random_;
  std::shared_ptr<Node> top_;
  std::map<int, std::shared_ptr<Node>> descriptors_;
};

}  // namespace millrace
