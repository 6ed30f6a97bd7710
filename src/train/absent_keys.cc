// Words that configs of other trainers have and this one has no key for: because it always does it
// so, because there is no way to do it wrong, or because its key has another name. Whoever writes
// one is told which.
#include "train/settings.h"

namespace millrace {

void declare_absent_keys(Schema& s) {
  s.absent({"pin_memory", "pinned", "pinned_memory", "non_blocking"},
           "batches always go to a device through pinned memory, beside the step");
  s.absent({"persistent_workers"}, "loaders live as long as the run");
  s.absent({"collate_fn", "collate"}, "batches are always filled in place, ahead of the step");
  s.absent({"shuffle", "drop_last"},
           "the order of the data follows from `seed`, and nothing is dropped");
  s.absent({"tokenize_on_the_fly", "on_the_fly_tokenization", "tokenize_in_collate",
            "tokenize_on_main_thread", "lazy_tokenization", "pretokenize", "pre_tokenize"},
           "text is tokenized once, by all cores, before training: no step waits for it");
  s.absent({"validate_after_training", "validation_outside_loop", "eval_after_training",
            "validate_at_end", "eval_strategy", "evaluation_strategy"},
           "validation runs inside the loop; `training.eval_every` says how often");
  s.absent({"double_forward", "forward_twice", "separate_loss_forward", "recompute_loss"},
           "an update has one forward pass, and its loss comes out of that");
  s.absent({"save_after_training", "save_at_end_only"},
           "checkpoints are saved inside the loop; `checkpoint.every` says how often");
  s.absent({"use_amp", "amp", "mixed_precision", "use_mixed_precision", "fp16", "bf16", "tf32",
            "use_tf32", "allow_tf32"},
           "`training.precision` is the one key for it: fp32, tf32, bf16 or fp16");
  s.absent({"flash_attention", "use_flash_attention", "use_flash", "attn_implementation", "sdpa"},
           "attention never makes a matrix of all pairs: there is no other kind here");
  s.absent({"fused_adamw", "fused_optimizer", "fused", "foreach"},
           "the optimizer is always one pass over all parameters");
  s.absent({"gradient_checkpointing", "activation_checkpointing"},
           "`runtime.memory_limit` decides what is computed twice: as little as fits");
  s.absent({"torch_compile", "compile", "compile_mode"},
           "graphs are always compiled; `training.use_compile` is about capturing them on a GPU");
  s.absent({"cudnn_benchmark", "autotune", "autotune_kernels"},
           "algorithms are always timed, once for each machine, and remembered");
  s.renamed({"lr", "max_lr"}, "training.learning_rate");
  s.renamed({"epochs", "num_train_epochs", "max_epochs", "n_epochs"}, "training.num_epochs");
  s.renamed({"max_iters", "max_train_steps", "total_steps", "num_steps"}, "training.max_steps");
  s.renamed({"gradient_accumulation_steps", "accumulation_steps", "grad_accum_steps",
             "accumulate_grad_batches"},
            "training.grad_accum");
  s.renamed({"per_device_train_batch_size", "micro_batch_size", "per_gpu_batch_size"},
            "training.batch_size");
  s.renamed({"block_size", "context_length", "context_size", "seq_len", "seq_length",
             "sequence_length", "max_seq_len", "max_seq_length"},
            "training.max_length");
  s.renamed({"max_grad_norm", "grad_clip", "clip_grad_norm", "gradient_clip_val"},
            "training.gradient_clip");
  s.renamed({"warmup_iters", "num_warmup_steps"}, "training.warmup");
  s.renamed({"lr_scheduler", "lr_scheduler_type"}, "training.schedule");
  s.renamed({"adam_beta1"}, "training.beta1");
  s.renamed({"adam_beta2"}, "training.beta2");
  s.renamed({"adam_epsilon", "epsilon"}, "training.eps");
  s.renamed({"eval_interval", "eval_steps"}, "training.eval_every");
  s.renamed({"logging_steps", "log_every"}, "training.log_interval");
  s.renamed({"save_steps", "save_interval", "save_every"}, "checkpoint.every");
  s.renamed({"n_embd", "n_embed", "hidden_size", "embed_dim"}, "model.d_model");
  s.renamed({"n_layer", "n_layers", "num_hidden_layers"}, "model.num_layers");
  s.renamed({"n_head", "n_heads", "num_attention_heads"}, "model.num_heads");
  s.renamed({"out_dir", "output_dir"}, "runs_folder");
}

}  // namespace millrace
