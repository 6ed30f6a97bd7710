#include "train/program.h"

#include <algorithm>

#include "graph/autodiff.h"
#include "ops/optimizer_common.h"

namespace millrace {
namespace {

struct ParameterGradient {
  Parameter parameter;
  Value value;
  Value gradient;
};

// Forward and backward; one gradient per parameter that trains, in table order. `scaling`, when the
// precision wants one, is a factor that the gradients carry and `loss` does not.
std::vector<ParameterGradient> build_gradients(Builder& b, const Model& model,
                                               const Settings& settings, BatchShape shape,
                                               Value& loss, Value& scaling) {
  if (settings.pass_precision() == Precision::fp16) {
    scaling = b.leaf(Leaf::optimizer_state, kLossScaling, {Shape{}, DType::f32});
    b.set_loss_scale(b.mul(b.loss_scale(), scaling));
  }
  b.label_smoothing = settings.label_smoothing;
  const Value scaled = model.build_loss(b, shape);
  if (b.failed()) return {};
  std::vector<ParameterGradient> list;
  std::vector<Value> wanted;
  for (Parameter& p : model.parameters()) {
    if (!p.trained) continue;
    const NodeId leaf = b.graph().find_leaf(p.name);
    MR_CHECK(leaf >= 0, "parameter {} is not used", p.name);
    wanted.push_back({leaf, 0});
    list.push_back({std::move(p), {leaf, 0}, {}});
  }
  b.phase = Phase::backward;
  const Value one = b.constant(1);
  b.phase = Phase::forward;
  const Seed seed{scaled, one};
  const auto gradient_values = gradients(b, std::span(&seed, 1), wanted);
  for (size_t i = 0; i < list.size(); ++i) list[i].gradient = gradient_values[i];
  b.phase = Phase::optimizer;
  loss = scaling.valid() ? b.apply(Function::div, scaled, scaling) : scaled;
  return list;
}

// Half after an update that was not finite, double after many that were; `factor` is positive when
// the update was made. PyTorch's GradScaler, with its constants.
void build_scaling_update(Builder& b, Value scaling, Value factor) {
  constexpr double kGrowAfter = 2000;
  const Value count = b.leaf(Leaf::optimizer_state, "loss_scaling.count", {Shape{}, DType::f32});
  ExpressionBuilder e(3);
  const Term one = e.constant(1), made = e.apply(Function::step, e.operand(2));
  const Term next = e.apply(Function::mul, made, e.apply(Function::add, e.operand(1), one));
  const Term grows =
      e.apply(Function::step, e.apply(Function::sub, next, e.constant(kGrowAfter - 0.5)));
  // 1/2 + made/2 + grows
  const Term change =
      e.apply(Function::add,
              e.apply(Function::mul, e.constant(0.5), e.apply(Function::add, one, made)), grows);
  const Term scale = e.apply(Function::mul, e.operand(0), change);
  const Term counted = e.apply(Function::mul, next, e.apply(Function::sub, one, grows));
  const auto out = b.op_all("elementwise", {scaling, count, factor},
                            {{"expr", e.finish({scale, counted}).str()}});
  b.update(scaling, out[0]);
  b.update(count, out[1]);
}

// What the earlier micro-batches of an update gave.
Value earlier_loss(Builder& b) {
  return b.leaf(Leaf::gradient_buffer, "gradient.loss", {Shape{}, DType::f32});
}

Value gradient_buffer(Builder& b, const Parameter& p) {
  return b.leaf(Leaf::gradient_buffer, "gradient." + p.name, {p.shape, DType::f32});
}

// One multi-tensor optimizer node over all parameters; returns their new values.
std::vector<Value> build_update(Builder& b, const OptimizerSettings& o,
                                const std::vector<ParameterGradient>& list, Value scale) {
  const bool adam = o.kind == "adamw" || o.kind == "adam";
  std::vector<std::string> slots;
  if (adam)
    slots = {"m", "v"};
  else if (o.kind == "adagrad")
    slots = {"sum"};
  else if (o.momentum > 0)
    slots = {"momentum"};

  std::vector<Value> in;
  for (const auto& p : list) in.push_back(p.value);
  for (const auto& p : list) in.push_back(p.gradient);
  for (const std::string& slot : slots)
    for (const auto& p : list)
      in.push_back(b.leaf(Leaf::optimizer_state, slot + "." + p.parameter.name,
                          {p.parameter.shape, DType::f32}));
  in.push_back(b.input("learning_rate", {Shape{}, DType::f32}));
  in.push_back(scale);
  in.push_back(b.update_number());

  std::vector<double> decay;
  for (const auto& p : list) decay.push_back(p.parameter.decay ? o.weight_decay : 0.0);
  Attrs attrs{{"n", static_cast<int64_t>(list.size())}, {"decay", decay_text(decay)}};
  if (adam)
    for (const auto& e : {Attrs::Entry{"beta1", o.beta1},
                          {"beta2", o.beta2},
                          {"eps", o.eps},
                          {"decoupled", o.kind == "adamw"}})
      attrs.set(e);
  else if (o.kind == "adagrad")
    attrs.set({"eps", o.eps});
  else {
    attrs.set({"momentum", o.momentum});
    attrs.set({"nesterov", o.nesterov});
  }
  const auto out = b.op_all(adam ? "adam" : o.kind, in, attrs);
  // Outputs come in the order of the inputs they replace: parameters, then each slot.
  for (size_t i = 0; i < list.size(); ++i) b.update(in[i], out[i]);
  for (size_t s = 0; s < slots.size(); ++s)
    for (size_t i = 0; i < list.size(); ++i)
      b.update(in[(2 + s) * list.size() + i], out[(1 + s) * list.size() + i]);
  return {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(list.size())};
}

// average += rate * (parameter - average), where the update was made: a step of gradient descent on
// half the squared distance of the two, whose gradient is average - parameter.
void build_average(Builder& b, const std::vector<ParameterGradient>& list,
                   const std::vector<Value>& updated, Value scale) {
  std::vector<Value> in;
  for (const auto& p : list)
    in.push_back(b.leaf(Leaf::optimizer_state, "ema." + p.parameter.name,
                        {p.parameter.shape, DType::f32}));
  in.insert(in.end(), updated.begin(), updated.end());
  in.push_back(b.input("ema_rate", {Shape{}, DType::f32}));
  // -1, or NaN where the scale of the gradient is not finite: then nothing is written.
  ExpressionBuilder e(1);
  const Term nothing = e.apply(Function::sub, e.operand(0), e.operand(0));
  in.push_back(
      b.elementwise(e.finish({e.apply(Function::sub, nothing, e.constant(1))}), {scale}));
  in.push_back(b.update_number());
  const std::vector<double> whole(list.size(), 1.0);
  const auto next = b.op_all("sgd", in,
                             {{"n", static_cast<int64_t>(list.size())},
                              {"decay", decay_text(whole)},
                              {"momentum", 0.0}});
  for (size_t i = 0; i < list.size(); ++i) b.update(in[i], next[i]);
}

}  // namespace

Graph build_step_graph(const Model& model, const Settings& settings, BatchShape shape) {
  Builder b;
  Value whole, scaling;
  auto list = build_gradients(b, model, settings, shape, whole, scaling);
  if (b.failed()) return b.finish();
  if (settings.grad_accum > 1)
    for (auto& p : list) p.gradient = b.add(p.gradient, gradient_buffer(b, p.parameter));
  std::vector<Value> all;
  for (const auto& p : list) all.push_back(p.gradient);
  Value norm = b.op("grad_norm", all);
  if (scaling.valid()) norm = b.apply(Function::div, norm, scaling);
  if (settings.grad_accum > 1) whole = b.add(whole, earlier_loss(b));
  // min(1, clip / (norm + 1e-6)), PyTorch's clip_grad_norm_. A norm or a loss that is not finite
  // makes the factor not finite, and the optimizer then writes nothing.
  ExpressionBuilder e(2);
  const Term n = e.operand(0), l = e.operand(1);
  const double clip = settings.optimizer.gradient_clip;
  const Term factor = clip > 0 ? e.apply(Function::min,
                                         e.apply(Function::div, e.constant(clip),
                                                 e.apply(Function::add, n, e.constant(1e-6))),
                                         e.constant(1))
                               : e.constant(1);
  // x - x is 0, or NaN when x is not finite: min() would hide an infinite norm.
  const Term guard =
      e.apply(Function::add, e.apply(Function::sub, n, n), e.apply(Function::sub, l, l));
  const Value scale =
      b.elementwise(e.finish({e.apply(Function::add, factor, guard)}), {norm, whole});
  const auto updated =
      build_update(b, settings.optimizer, list,
                   scaling.valid() ? b.apply(Function::div, scale, scaling) : scale);
  if (scaling.valid()) build_scaling_update(b, scaling, scale);
  if (settings.ema_decay > 0) build_average(b, list, updated, scale);
  b.output("loss", whole);
  b.output("grad_norm", norm);
  return b.finish();
}

Graph build_accumulate_graph(const Model& model, const Settings& settings, BatchShape shape) {
  Builder b;
  Value loss, scaling;
  const auto list = build_gradients(b, model, settings, shape, loss, scaling);
  if (b.failed()) return b.finish();
  const Value beta = b.input("accumulate_beta", {Shape{}, DType::f32});
  auto accumulate = [&](Value buffer, Value more) {
    ExpressionBuilder e(3);
    const Term kept = e.apply(Function::mul, e.operand(0), e.operand(1));
    b.update(buffer, b.elementwise(e.finish({e.apply(Function::add, kept, e.operand(2))}),
                                   {buffer, beta, more}));
  };
  for (const auto& p : list) accumulate(gradient_buffer(b, p.parameter), p.gradient);
  accumulate(earlier_loss(b), loss);
  b.output("loss", loss);
  return b.finish();
}

Graph build_eval_graph(const Model& model, BatchShape shape) {
  Builder b;
  b.training = false;
  b.output("loss", model.build_loss(b, shape));
  return b.finish();
}

Graph build_decode_graph(const Model& model, BatchShape shape, int64_t capacity) {
  Builder b;
  b.training = false;
  b.output("logits", model.build_decode(b, shape, capacity));
  return b.finish();
}

Graph build_encode_graph(const Model& model, BatchShape shape, int64_t capacity) {
  Builder b;
  b.training = false;
  model.build_encode(b, shape, capacity);
  return b.finish();
}

namespace {

// What may come next: [B,V] or, where words are copied, [B,V+S].
Value build_probabilities(Builder& b, const Model& model, BatchShape shape, int64_t capacity) {
  const Value written = b.op("softmax", {model.build_decode(b, shape, capacity)});
  if (!model.takes().open_words) return written;
  auto output = [&](const char* name) { return b.graph().outputs.at(name); };
  const Value columns = b.input(kBeamColumns, {{shape.sources(), shape.source}, DType::i32}),
              lengths{b.graph().find_leaf("source_lengths"), 0};
  return b.op("copy_mix", {written, output("gate"), output("attention"), columns, lengths});
}

}  // namespace

DecodePlans make_decode_plans(const Model& model, int64_t capacity, const PassOptions& options,
                              KernelChooser& chooser) {
  if (model.takes().pairs) {
    const BatchShape one{.batch = 1, .length = 1, .source = model.max_lengths().source};
    Plan encode = make_plan(build_encode_graph(model, one, capacity), options, chooser);
    if (model.logits_are_all())
      return {std::move(encode),
              make_plan(build_decode_graph(model, one, capacity), options, chooser)};
    Builder b;
    b.training = false;
    b.output("probabilities", build_probabilities(b, model, one, capacity));
    return {std::move(encode), make_plan(b.finish(), options, chooser)};
  }
  const BatchShape chunk{1, prefill_chunk(capacity)};
  return {make_plan(build_decode_graph(model, chunk, capacity), options, chooser),
          make_plan(build_decode_graph(model, {1, 1}, capacity), options, chooser)};
}

int64_t beam_capacity(const Model& model, const BeamRoom& room) {
  const int64_t prompt = model.takes().pairs ? 0 : room.max_source;
  return std::clamp<int64_t>(prompt + room.max_length, 1, model.max_lengths().target);
}

BeamPlans make_beam_plans(const Model& model, const BeamRoom& room, int64_t beam,
                          const PassOptions& options, KernelChooser& chooser) {
  const BatchShape shape{
      .batch = room.sources * beam, .length = 1, .source = room.max_source, .beams = beam};
  BatchShape sources = shape;
  sources.length = prefill_chunk(room.max_source);
  const int64_t capacity = beam_capacity(model, room);
  Builder b;
  b.training = false;
  const Value probabilities = build_probabilities(b, model, shape, capacity);
  const int64_t words = b.shape(probabilities).last();
  const auto best = b.op_all("top_k", {probabilities}, {{"k", std::min(words, best_of_row(beam))}});
  b.output("probabilities", probabilities);
  b.output("best", best[0]);
  b.output("best_words", best[1]);
  auto plan = [&](Graph graph) {
    for (Node& n : graph.nodes)
      if (n.leaf == Leaf::cache) n.name = "beam." + n.name;
    return make_plan(graph, options, chooser);
  };
  return {plan(build_encode_graph(model, sources, capacity)), plan(b.finish())};
}

BeamRoom room_for_all(const Model& model, int64_t sources) {
  const MaxLengths most = model.max_lengths();
  return {sources, model.takes().pairs ? most.source : most.target, most.target};
}

BeamRoom validation_room(const Model& model, const Settings& settings) {
  // Enough that a step of all of them is worth its start, few enough that their caches are small
  // beside what training keeps.
  constexpr int64_t kAtOnce = 16;
  return room_for_all(model, std::min(kAtOnce, settings.eval_texts));
}

Plan make_refresh_plan(std::span<const Plan* const> plans, KernelChooser& chooser) {
  Builder b;
  for (const Plan* plan : plans)
    for (const Node& n : plan->graph.nodes) {
      if (n.leaf != Leaf::shadow || b.graph().find_leaf(n.name) >= 0) continue;
      const std::string name = n.name.substr(shadow_name("").size());
      const Value parameter = b.parameter(name, n.out[0].shape),
                  shadow = b.leaf(Leaf::shadow, n.name, n.out[0]);
      b.update(shadow,
               b.op("elementwise", {parameter},
                    {{"expr", "->a0"}, {"store", std::string(dtype_name(n.out[0].dtype))}}));
    }
  return make_plan(b.finish(), {}, chooser);
}

std::vector<const Plan*> Programs::plans() const {
  std::vector<const Plan*> list;
  for (const auto* of : {&steps, &accumulates, &evaluates})
    for (const Plan& plan : *of) list.push_back(&plan);
  if (generates()) list.insert(list.end(), {&generation.prefill, &generation.decode});
  if (writes_texts()) list.insert(list.end(), {&texts.encode, &texts.decode});
  if (!refresh.graph.nodes.empty()) list.push_back(&refresh);
  return list;
}

Programs make_programs(const Model& model, const Settings& settings, const ProgramShapes& shapes,
                       Backend& backend) {
  std::vector<Graph> steps, accumulates, evaluates;
  for (const BatchShape& shape : shapes.train) {
    steps.push_back(build_step_graph(model, settings, shape));
    if (settings.grad_accum > 1)
      accumulates.push_back(build_accumulate_graph(model, settings, shape));
  }
  for (const BatchShape& shape : shapes.evaluate)
    evaluates.push_back(build_eval_graph(model, shape));
  PassOptions options = settings.pass_options();
  // What a memory limit changes is the training graph's.
  DecodePlans generation;
  if (model.logits_are_all())
    generation = make_decode_plans(model, std::min(settings.max_length, model.max_lengths().target),
                                   options, backend);
  BeamPlans texts;
  if (settings.eval_texts > 0)
    texts = make_beam_plans(model, validation_room(model, settings), settings.eval_beam, options,
                            backend);
  // A step is captured twice, once to be timed; each only when its shape comes.
  auto captured = [](const std::vector<Graph>& graphs, int64_t runs) {
    return std::min(2 * std::ssize(graphs), runs > 0 ? runs : INT64_MAX);
  };
  const int64_t updates = settings.max_steps, at_once = backend.runs_at_once();
  const auto overhead = backend.overhead_bytes(
      options.precision,
      captured(steps, updates) + captured(accumulates, updates * (settings.grad_accum - 1)) +
          std::ssize(evaluates) + (at_once > 1 ? at_once * std::ssize(steps) : 0));
  const bool timing = backend.allow_timing(false);
  backend.allow_timing(timing);
  auto attempt = [&](const PassOptions& with) {
    Programs p{{}, {}, {}, generation, texts, {}, with, overhead, at_once};
    // Timing the products of one shape takes a second; those of dozens would be a long wait.
    auto plan_all = [&](const std::vector<Graph>& graphs, std::vector<Plan>& plans) {
      for (const Graph& graph : graphs) {
        backend.allow_timing(timing && plans.empty());
        plans.push_back(make_plan(graph, with, backend));
      }
      backend.allow_timing(timing);
    };
    plan_all(steps, p.steps);
    plan_all(accumulates, p.accumulates);
    plan_all(evaluates, p.evaluates);
    p.refresh = make_refresh_plan(p.plans(), backend);
    return p;
  };
  const int64_t limit = settings.memory_limit, layers = std::ssize(recompute_units(steps[0]));
  Programs programs = attempt(options);
  auto fits = [&](const Programs& p) { return limit == 0 || p.needed_bytes() <= limit; };
  // Recomputation changes no bit of the losses, so it comes first: norms and activations again,
  // then whole layers again, as few as needed. Fewer logits at once sum the head's gradient in
  // another order, and below the kernel's own choice its weights are read too often.
  for (int64_t rows : {0, 256, 64, 16}) {
    options.recompute = {};
    options.head_chunk_rows = std::min(rows, shapes.train[0].batch * shapes.train[0].length);
    if (rows > 0) programs = attempt(options);
    if (fits(programs)) return programs;
    if (!settings.recompute) continue;
    options.recompute.cheap = true;
    programs = attempt(options);
    if (fits(programs)) return programs;
    options.recompute.whole_layers = layers;
    programs = attempt(options);
    if (!fits(programs)) continue;
    for (int64_t low = 1, high = layers; low < high;) {
      const int64_t middle = (low + high) / 2;
      options.recompute.whole_layers = middle;
      Programs candidate = attempt(options);
      if (fits(candidate)) {
        programs = std::move(candidate);
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return programs;
  }
  return programs;
}

int64_t largest_batch(const Model& model, Settings settings, BatchShape like, int64_t limit,
                      Backend& backend) {
  settings.memory_limit = limit;
  auto fits = [&](int64_t batch) {
    like.batch = batch;
    return make_programs(model, settings, like, backend).needed_bytes() <= limit;
  };
  int64_t good = 0, bad = 1;
  while (bad < (1 << 20) && fits(bad)) {
    good = bad;
    bad *= 2;
  }
  while (bad - good > 1) {
    const int64_t middle = (good + bad) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace millrace
