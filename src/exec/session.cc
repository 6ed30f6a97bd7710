#include "exec/session.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "core/half.h"

namespace millrace {

SessionLayout layout_session(std::span<const Plan* const> plans, int64_t runs_at_once) {
  SessionLayout layout;
  std::set<std::string> inputs;
  for (const Plan* plan : plans) {
    layout.scratch_bytes = std::max(layout.scratch_bytes, plan->scratch_bytes);
    for (const Node& n : plan->graph.nodes) {
      if (n.leaf == Leaf::none) continue;
      if (n.leaf == Leaf::input) inputs.insert(n.name);
      const auto [at, fresh] = layout.type.try_emplace(n.name, n.out[0]);
      TensorType& type = at->second;
      // A batch of another shape is another value of the same input.
      const bool input = n.leaf == Leaf::input && type.dtype == n.out[0].dtype;
      MR_CHECK(type == n.out[0] || input, "leaf {} is {} in one plan and {} in another", n.name,
               type.str(), n.out[0].str());
      if (type.bytes() < n.out[0].bytes()) type = n.out[0];
    }
  }
  for (const bool input : {true, false})
    for (const auto& [name, type] : layout.type) {
      if (inputs.contains(name) != input) continue;
      layout.offset[name] = layout.state_bytes;
      layout.state_bytes += aligned(type.bytes());
      if (input) layout.input_bytes = layout.state_bytes;
    }
  layout.ring = layout.state_bytes;
  if (runs_at_once > 1) layout.state_bytes += runs_at_once * layout.input_bytes;
  return layout;
}

Session::Session(Backend& backend, std::vector<const Plan*> plans)
    : backend_(backend),
      plans_(std::move(plans)),
      layout_(layout_session(plans_, backend.runs_at_once())),
      state_(backend.allocate(layout_.state_bytes)),
      scratch_(backend.allocate(layout_.scratch_bytes)),
      staging_(backend.stage(state_->data(), layout_.input_bytes, state_->data() + layout_.ring)) {
  for (const Plan* plan : plans_) {
    std::vector<std::byte*> place;
    for (const Buffer& b : plan->buffers) {
      if (b.in_state)
        place.push_back(state_->data() + layout_.offset.at(plan->graph[b.owner].name));
      else
        place.push_back(scratch_->data() + b.offset);
    }
    executables_.push_back(backend_.load(*plan, place));
    place_.push_back(std::move(place));
  }
}

const TensorType& Session::type(const std::string& leaf) const {
  const auto found = layout_.type.find(leaf);
  MR_CHECK(found != layout_.type.end(), "no leaf {}", leaf);
  return found->second;
}

const TensorType& Session::input_type(size_t plan, const std::string& leaf) const {
  const Graph& graph = plans_[plan]->graph;
  const NodeId node = graph.find_leaf(leaf);
  MR_CHECK(node >= 0, "plan {} has no input {}", plan, leaf);
  return graph[node].out[0];
}

int64_t Session::place_of(const std::string& leaf, int64_t begin, size_t bytes) const {
  MR_CHECK(begin >= 0 && begin + static_cast<int64_t>(bytes) <= type(leaf).bytes(),
           "leaf {}: {} bytes from {} of {}", leaf, bytes, begin, type(leaf).str());
  return layout_.offset.at(leaf) + begin;
}

void Session::write_bytes(const std::string& leaf, std::span<const std::byte> bytes,
                          int64_t begin) {
  const int64_t place = place_of(leaf, begin, bytes.size());
  if (staging_ && place < layout_.input_bytes) {
    std::copy(bytes.begin(), bytes.end(), staging_->data() + place);
    inputs_written_ = true;
  } else {
    backend_.copy_in(state_->data() + place, bytes);
  }
}

void Session::send_inputs() {
  if (std::exchange(inputs_written_, false)) staging_->send();
}

void Session::read_bytes(const std::string& leaf, std::span<std::byte> bytes, int64_t begin) const {
  const int64_t place = place_of(leaf, begin, bytes.size());
  if (staging_ && place < layout_.input_bytes)
    std::copy_n(staging_->data() + place, bytes.size(), bytes.begin());
  else
    backend_.copy_out(bytes, state_->data() + place);
}

const std::byte* Session::output_place(size_t plan, const std::string& name,
                                       TensorType& out_type) const {
  const auto found = plans_[plan]->graph.outputs.find(name);
  MR_CHECK(found != plans_[plan]->graph.outputs.end(), "no output {}", name);
  const Value v = found->second;
  out_type = plans_[plan]->graph.type(v);
  return place_[plan][static_cast<size_t>(
      plans_[plan]->buffer_of[static_cast<size_t>(v.node)][static_cast<size_t>(v.out)])];
}

Session::Nonfinite Session::first_nonfinite(size_t plan) {
  const Plan& p = *plans_[plan];
  send_inputs();
  auto is_bad = [&](NodeId id, size_t out) {
    const TensorType& t = p.graph[id].out[out];
    if (t.dtype == DType::i32) return false;
    const int32_t buffer = p.buffer_of[static_cast<size_t>(id)][out];
    const std::vector<float> values = floats_at(t, place_[plan][static_cast<size_t>(buffer)]);
    return !std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  };
  for (NodeId id = 0; id < p.graph.size(); ++id)
    if (const Node& n = p.graph[id]; n.leaf != Leaf::none && is_bad(id, 0))
      return {fmt::format("{}, before the step ran", n.name), n.leaf};
  std::string found;
  executables_[plan]->run_nodes([&](NodeId id) {
    const Node& n = p.graph[id];
    for (size_t out = 0; out < n.out.size() && found.empty(); ++out)
      if (is_bad(id, out)) {
        const std::string& scope = p.graph.scopes[static_cast<size_t>(n.scope)].path;
        found = fmt::format("{}{}{}, output {} {}", scope, scope.empty() ? "" : ": ", n.op->name,
                            out, n.out[out].str());
      }
    return found.empty();
  });
  return {found};
}

std::vector<float> Session::output(size_t plan, const std::string& name) const {
  TensorType t;
  const std::byte* at = output_place(plan, name, t);
  return floats_at(t, at);
}

std::vector<float> Session::floats_at(const TensorType& t, const std::byte* at) const {
  std::vector<float> values(static_cast<size_t>(t.numel()));
  if (!is_half(t.dtype)) {
    backend_.copy_out(std::as_writable_bytes(std::span(values)), at);
    return values;
  }
  std::vector<uint16_t> bits(values.size());
  backend_.copy_out(std::as_writable_bytes(std::span(bits)), at);
  for (size_t i = 0; i < bits.size(); ++i) values[i] = half_to_float(t.dtype, bits[i]);
  return values;
}

std::vector<int32_t> Session::integer_output(size_t plan, const std::string& name) const {
  TensorType t;
  const std::byte* at = output_place(plan, name, t);
  MR_CHECK(t.dtype == DType::i32, "output {} is {}", name, t.str());
  std::vector<int32_t> values(static_cast<size_t>(t.numel()));
  backend_.copy_out(std::as_writable_bytes(std::span(values)), at);
  return values;
}

float Session::scalar_output(size_t plan, const std::string& name) const {
  TensorType t;
  const std::byte* at = output_place(plan, name, t);
  float value = 0;
  backend_.copy_out(std::as_writable_bytes(std::span(&value, 1)), at);
  return value;
}

std::unique_ptr<Late> Session::fetch(size_t plan, std::span<const std::string> names) const {
  std::vector<const std::byte*> places;
  for (const std::string& name : names) {
    TensorType t;
    places.push_back(output_place(plan, name, t));
    MR_CHECK(t == (TensorType{Shape{}, DType::f32}), "output {} is {}", name, t.str());
  }
  return backend_.fetch(places);
}

void Session::settle(Ledger& ledger) {
  std::array<int64_t, 3> phase_ns{};
  bool any = false;
  for (const auto& e : executables_) any = e->settle(phase_ns) || any;
  if (any) ledger.add_device(phase_ns);
}

}  // namespace millrace
