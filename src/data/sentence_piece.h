// SentencePiece, kinds unigram (Kudo 2018) and BPE: learned in-process by the library, or loaded
// from a .model file. Ids are those of the library, line by line, in time n log n of a line; the
// library itself is not asked for them, because its Encode makes a message of two strings for every
// token, appends to a growing string for every unknown character in a row, and trusts the file.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/tokenizer.h"

namespace millrace {

struct SentencePieceOptions {
  std::string kind = "unigram";  // or "bpe"
  int64_t vocab_size = 8000;
  double character_coverage = 0.9995;  // of the text; rarer characters become bytes
};

// The bytes of a model learned from the sentences, the same for the same sentences: identity
// normalisation, white space kept, bytes for what is rare, so that a text without line ends comes
// back from its ids as it was (but U+2581, with which SentencePiece writes a space, comes back as
// one). Ids 0 <unk>, 1 <s>, 2 </s>, then 256 bytes. Error (config) when the sentences are empty or
// do not give a vocabulary of that size. One training at a time.
std::string train_sentence_piece(const SentencePieceOptions& options,
                                 std::span<const std::string> sentences);

// A text is cut into lines; between two of them stands the id of the piece "\n", or of the byte
// piece <0x0A>, or nothing when the model has neither. Bytes that are not UTF-8 count as U+FFFD
// each. Error (config) with `source_name` when the bytes are not such a model.
std::unique_ptr<Tokenizer> make_sentence_piece_tokenizer(std::string model_bytes,
                                                         const std::string& source_name);

}  // namespace millrace
