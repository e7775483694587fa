#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// Numbers as people write them.
namespace mezzo::text {

/// "1 step", "2 steps"; of words with another plural: counted(2, "batch", "batches").
std::string counted(int64_t count, std::string_view singular, std::string_view plural = {});

/// "0.3 s", "42 s", "4 min 12 s", "2 h 5 min", "3 d 4 h".
std::string duration_in_words(double seconds);

/// Of valid UTF-8.
size_t count_code_points(std::string_view text);

constexpr double gigabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

}  // namespace mezzo::text
