// What the parts of attention_decoder share: its sizes and the places of its tensors.
#pragma once
#include <algorithm>
#include <cstdint>

#include "graph/op.h"

namespace millrace {

// Inputs of both ops.
enum DecoderInput : size_t {
  kDecoderX,
  kDecoderW,
  kDecoderMemory,
  kDecoderKeys,
  kDecoderWq,
  kDecoderV,
  kDecoderLengths,
  kDecoderH0,
  kDecoderC0,
  // Of the forward op, with coverage; behind it, resumed=1, context0 and, with coverage, covered0.
  kDecoderWc,
  // Of the gradient: what the forward op gave. Behind these, where they exist, stand wc and the
  // cotangents, all in f32.
  kDecoderH = kDecoderWc,
  kDecoderContext,
  kDecoderAttention,
  kDecoderGates,
  kDecoderCells,
  kDecoderRest,
};

// The cotangents that a gradient may be given, by bit of its attribute `given`.
enum DecoderCotangent { kGivenH, kGivenContext, kGivenAttention, kGivenOverlap, kCotangents };

struct DecoderSite {
  explicit DecoderSite(const OpSite& site)
      : T(site.in[kDecoderX].shape[0]),
        B(site.in[kDecoderX].shape[1]),
        S(site.in[kDecoderMemory].shape[1]),
        H(site.in[kDecoderWq].shape[0]),
        M(site.in[kDecoderMemory].shape[2]),
        A(site.in[kDecoderWq].shape[1]),
        coverage(site.attrs.integer("coverage") != 0),
        resumed(site.attrs.integer("resumed", 0) != 0),
        beams(site.attrs.integer("beams", 1)) {}

  // Source places that take part, of a sequence that says it has so many.
  int64_t places(int32_t length) const { return std::clamp<int64_t>(length, 0, S); }

  // Where the forward op finds what it begins with, if it is resumed.
  size_t context0() const { return kDecoderWc + coverage; }
  size_t covered0() const { return context0() + 1; }
  size_t inputs() const { return context0() + (resumed ? 1u + coverage : 0u); }

  int64_t T, B, S, H, M, A;
  bool coverage, resumed;
  int64_t beams;  // sequences that read one memory
};

// Where the gradient finds what may be missing: an input, or 0.
struct DecoderRest {
  explicit DecoderRest(const Attrs& attrs) {
    size_t next = kDecoderRest;
    if (attrs.integer("coverage") != 0) wc = next++;
    const int64_t given = attrs.integer("given");
    for (int i = 0; i < kCotangents; ++i) cotangent[i] = given >> i & 1 ? next++ : 0;
    inputs = next;
  }
  size_t wc = 0, cotangent[kCotangents] = {}, inputs;
};

}  // namespace millrace
