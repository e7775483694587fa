#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "mezzo/text/data/packed_batch.h"
#include "mezzo/text/data/tokenized_texts.h"

namespace mezzo::text {

/// The division of an epoch's texts into batches. All values except kGrouped put the same texts
/// into the same batches, so they differ only in speed.
enum class Batching {
  kPacked,   ///< text after text, without padding
  kGrouped,  ///< texts of similar length together, padded to the longest of the batch (transformers' group_by_length)
  kDynamic,  ///< padded to the longest of the batch
  kPadded    ///< padded to the maximum length
};

/// @throws c10::ValueError  for any name except packed, grouped, dynamic and padded; the message
///     lists the names
Batching parse_batching(std::string_view name);

/// The batches of one epoch: lists of indices into the data set. Each index occurs once, and the
/// last batch may be shorter. A pure function of its arguments.
std::vector<std::vector<int64_t>> epoch_batches(
    const TokenizedTexts& texts, int64_t batch_size, Batching batching, uint64_t seed, int64_t epoch);

/// Batches for evaluation: texts sorted by length, longest first. A batch has at most `max_tokens`
/// tokens, or a single longer text.
std::vector<std::vector<int64_t>> length_sorted_batches(const TokenizedTexts& texts, int64_t max_tokens);

/// The number of rows of a packed batch of `tokens`, filler included: a multiple of 32 from 512 tokens on. Fewer tokens
/// have a smaller multiple, and less than a sixteenth of the rows is filler.
int64_t packed_rows(int64_t tokens);

/// The number of rows in `collate`'s result for this batch, including padding and filler.
int64_t count_rows(const TokenizedTexts& texts,
                   std::span<const int64_t> indices,
                   Batching batching,
                   int64_t max_length);

/// The rows of one batch.
/// @param max_length  number of tokens to which kPadded pads
PackedBatch collate(const TokenizedTexts& texts,
                    std::span<const int64_t> indices,
                    Batching batching,
                    int64_t max_length,
                    int64_t pad_id);

}  // namespace mezzo::text
