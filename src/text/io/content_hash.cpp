#include "text/io/content_hash.h"

#include <fmt/format.h>

#include "text/io/durable_files.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace mezzo::text {

struct ContentHash::State {
  XXH3_state_t xxh3;
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }

ContentHash::~ContentHash() = default;

void ContentHash::update(const void* data, size_t size) { XXH3_128bits_update(&state_->xxh3, data, size); }

std::string ContentHash::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

uint64_t ContentHash::low64() const { return XXH3_128bits_digest(&state_->xxh3).low64; }

std::string hash_of_file(const std::filesystem::path& path) {
  ContentHash hash;
  for_each_piece(path, [&](const void* data, size_t size) { hash.update(data, size); });
  return hash.hex();
}

}  // namespace mezzo::text
