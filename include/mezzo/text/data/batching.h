#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "mezzo/text/data/packed_batch.h"
#include "mezzo/text/data/tokenized_texts.h"

namespace mezzo::text {

/// How the texts of an epoch are put into batches. All but kGrouped make the same batches of the
/// same texts, so they differ in speed alone.
enum class Batching {
  kPacked,   ///< text after text, no padding
  kGrouped,  ///< texts of similar length together, padded to the longest of the batch (transformers' group_by_length)
  kDynamic,  ///< padded to the longest of the batch
  kPadded    ///< padded to the maximum length
};

/// @throws c10::ValueError  that lists the names, for any but packed, grouped, dynamic and padded.
Batching parse_batching(std::string_view name);

/// The batches of one epoch: lists of indices into the data set, each index once, the last batch
/// possibly shorter. A pure function of its arguments.
std::vector<std::vector<int64_t>> epoch_batches(
    const TokenizedTexts& texts, int64_t batch_size, Batching batching, uint64_t seed, int64_t epoch);

/// Batches for evaluation: texts sorted by length, longest first, each batch of as many as have at
/// most `max_tokens` tokens together, or of one that has more.
std::vector<std::vector<int64_t>> length_sorted_batches(const TokenizedTexts& texts, int64_t max_tokens);

/// How many rows `collate` makes of such a batch, padding and filler included.
int64_t count_rows(const TokenizedTexts& texts,
                   std::span<const int64_t> indices,
                   Batching batching,
                   int64_t max_length);

/// The rows of one batch.
/// @param max_length  what kPadded pads to.
PackedBatch collate(const TokenizedTexts& texts,
                    std::span<const int64_t> indices,
                    Batching batching,
                    int64_t max_length,
                    int64_t pad_id);

}  // namespace mezzo::text
