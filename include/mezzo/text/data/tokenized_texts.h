#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mezzo/text/data/rows.h"
#include "mezzo/text/tokenizers/tokenizer.h"

namespace mezzo::text {

/// Token ids of texts, with the data that belong to them.
struct TokenizedTexts {
  Rows<int32_t> ids;  ///< of each text
  /// The number of ids of each window of a text; windows follow each other in `ids`. Empty if no
  /// text has more than one window.
  Rows<int32_t> window_lengths = {};
  Rows<int32_t> token_types = {};  ///< as long as the ids each; empty if all are 0
  /// As long as the ids each: the index of the token's word in its text, -1 for special tokens.
  /// Empty if words are unknown.
  Rows<int32_t> word_ids = {};
  /// Row i belongs to text i; undefined without labels. If words are known, [N, longest] int32: the
  /// target of a word at its first token, kNoTarget at other tokens.
  at::Tensor targets = {};
  int64_t truncated = 0;                      ///< number of truncated texts
  int64_t lost_tokens = 0;                    ///< their lost tokens, if they were counted
  static constexpr int32_t kNoTarget = -100;  ///< ignored by PyTorch's losses
  /// The number of tokens of a text's longest window.
  int64_t longest(int64_t text) const;
  /// The number of windows of a text.
  int64_t num_windows(int64_t text) const;
  /// The number of tokens of all texts.
  int64_t count_tokens() const;
  /// The number of targets of these texts; the loss of a step is the mean over them.
  int64_t count_targets(std::span<const int64_t> indices) const;
};

/// A part of `texts`, without targets.
TokenizedTexts subspan(const TokenizedTexts& texts, int64_t begin, int64_t count);

/// Appends texts that the same tokenizer made, without targets. `more` is empty afterwards.
void append(TokenizedTexts& texts, TokenizedTexts&& more);

/// Options of tokenize().
struct TokenizeOptions {
  /// Whether to count the lost tokens of truncated texts, which are then encoded a second time in
  /// full.
  bool count_lost = false;
  std::shared_ptr<RowMemory> memory = nullptr;       ///< of the ids; null: all in memory
  std::function<void(int64_t texts)> on_texts = {};  ///< called from time to time with the number of finished texts
};

/// Encodes texts, or pairs of texts, in parallel. No targets.
/// @param text_pairs  as many as `texts`; empty for single texts
/// @param max_length  as of Tokenizer::encode
TokenizedTexts tokenize(const Tokenizer& tokenizer,
                        const Texts& texts,
                        const Texts& text_pairs,
                        int64_t max_length,
                        const TokenizeOptions& options = {});

/// Encodes texts with known words, in parallel. No targets.
TokenizedTexts tokenize(const Tokenizer& tokenizer,
                        std::span<const std::vector<std::string>> words,
                        int64_t max_length,
                        const TokenizeOptions& options = {});

/// Encodes texts as windows, in parallel: see Tokenizer::encode_windows(). No targets.
TokenizedTexts tokenize_windows(const Tokenizer& tokenizer,
                                const Texts& texts,
                                int64_t max_length,
                                int64_t stride,
                                const TokenizeOptions& options = {});

/// A note about truncation: "truncated to 128 tokens: 2.5 % of all tokens are not read".
/// @param read,  lost  tokens of all texts, including special tokens
std::string describe_cut(int64_t max_length, int64_t read, int64_t lost);

/// Sets the targets.
/// @param targets  as a Task makes them; if words are known, [N, most words] int32, with kNoTarget
///     after a text's last word
void set_targets(TokenizedTexts& texts, const at::Tensor& targets);

/// Refuses a text without tokens, because a model has no input for it. A tokenizer without special
/// tokens gives none for " ".
/// @param place  names a text, by its number from 0
/// @throws c10::ValueError  naming the first such text
void check_has_tokens(const TokenizedTexts& texts, const std::function<std::string(int64_t)>& place);

/// Refuses texts with known words if a model reads no token of any word.
/// @param texts  with targets
/// @throws c10::ValueError  naming the file
void check_reads_words(const TokenizedTexts& texts, const std::string& file, int64_t max_length);

}  // namespace mezzo::text
