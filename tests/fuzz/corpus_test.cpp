// The corpus, without a fuzzer: each of its files is read whole, truncated at every byte, and with every bit flipped.
// The result is the read file or one clear line. The memory stays within a few times the file's size.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>
#include <vector>

#include "fuzz/targets.h"

namespace {

std::atomic<int64_t> allocated{0}, most_allocated{0};

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const int64_t now = allocated += static_cast<int64_t>(malloc_usable_size(memory));
  int64_t most = most_allocated;
  while (now > most && !most_allocated.compare_exchange_weak(most, now)) {
  }
  return memory;
}

void release(void* memory) {
  if (memory != nullptr) allocated -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t size) { return counted(std::malloc(size == 0 ? 1 : size)); }
void* operator new[](size_t size) { return counted(std::malloc(size == 0 ? 1 : size)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new(size_t size, std::align_val_t alignment) {
  return counted(std::aligned_alloc(static_cast<size_t>(alignment), (size + static_cast<size_t>(alignment) - 1) &
                                                                        ~(static_cast<size_t>(alignment) - 1)));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }

namespace mezzo::fuzz {
namespace {

namespace fs = std::filesystem;

const fs::path kCorpus = MEZZO_FUZZ_CORPUS;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<fs::path> files_of(const Target& target) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(kCorpus / target.name)) files.push_back(entry.path());
  return files;
}

class CorpusTest : public ::testing::TestWithParam<Target> {
 protected:
  /// What reading it says; whatever else it throws ends the test.
  std::string read(std::string_view bytes) {
    most_allocated = allocated.load();
    const int64_t before = allocated;
    std::string said = folder_.read(bytes);
    constexpr int64_t kTimes = 4, kBuffers = 640 << 10;  // for any file; TOML's parser and unpacking need most
    EXPECT_LE(most_allocated - before, kTimes * static_cast<int64_t>(bytes.size()) + kBuffers) << said;
    return said;
  }

  Folder folder_{GetParam()};
};

TEST_P(CorpusTest, ReadsWhatIsWhole) {
  int whole = 0;
  for (const fs::path& file : files_of(GetParam())) {
    const bool is_finding = file.filename().string().starts_with("finding");
    const std::string said = read(read_file(file));
    const bool lacks_library =
        said.find("this mezzo was built without") != said.npos || said.find("cannot read Parquet") != said.npos;
    if (lacks_library) GTEST_SKIP() << said;
    whole += said.empty() ? 1 : 0;
    EXPECT_TRUE(said.empty() || is_finding) << file << ": " << said;
  }
  EXPECT_GT(whole, 0);
}

TEST_P(CorpusTest, IsCutOffAtEveryByte) {
  for (const fs::path& file : files_of(GetParam())) {
    const std::string whole = read_file(file);
    for (size_t size = 0; size < whole.size(); ++size) {
      SCOPED_TRACE(file.string() + ", cut to " + std::to_string(size));
      EXPECT_NO_THROW(read(std::string_view(whole).substr(0, size)));
    }
  }
}

TEST_P(CorpusTest, HasEveryBitTurnedOver) {
  for (const fs::path& file : files_of(GetParam())) {
    std::string bytes = read_file(file);
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      SCOPED_TRACE(file.string() + ", bit " + std::to_string(bit));
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      EXPECT_NO_THROW(read(bytes));
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    }
  }
}

/// A file of very many of the smallest things that a format has: rows, values, tokens. Each takes a place in memory,
/// however few its bytes.
struct SmallParts {
  std::string_view target, head, part, tail;  // the part has its number in place of %
  int64_t place = 320;                        // bytes
};

class SmallPartsTest : public ::testing::TestWithParam<SmallParts> {};

TEST_P(SmallPartsTest, TakeAPlaceEachAndNotMore) {
  const auto& [target, head, part, tail, place] = GetParam();
  constexpr int64_t kParts = (1 << 17) + 1;  // at which a vector has just grown, and has its old place beside the new
  constexpr int64_t kTimes = 4;
  std::string bytes(head);
  for (int64_t i = 0; i < kParts; ++i) {
    for (const char c : part) bytes += c == '%' ? std::to_string(i) : std::string(1, c);
  }
  bytes += tail;
  if (target == "safetensors") {
    const uint64_t size = bytes.size();
    bytes.insert(0, reinterpret_cast<const char*>(&size), sizeof(size));
  }
  const Folder folder(find_target(target));
  most_allocated = allocated.load();
  const int64_t before = allocated;
  const std::string said = folder.read(bytes);
  const int64_t taken = most_allocated - before;
  EXPECT_GE(taken, kParts) << said;
  EXPECT_LE(taken, kTimes * static_cast<int64_t>(bytes.size()) + place * kParts) << said;
}

constexpr SmallParts kSmallParts[] = {
    {"safetensors", "{", R"("%":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)", R"("a":0})"},
    {"safetensors", R"({"a":{"dtype":"U8","data_offsets":[0,0],"shape":[)", "0,", "0]}}"},
    {"txt", "", "\n", ""},
    {"txt", "", "__label__a x\n", ""},
    {"txt", "", "__label__% ", ""},
    {"csv", "text,label\n", ",a\n", ""},
    {"csv", "text,label,text_pair\n", ",1,\n", ""},
    {"csv", "", "a,", ""},
    {"csv", "text,label\n,", "%|", "\n"},
    {"tsv", "text\tlabel\n", "\ta\n", ""},
    {"json", "[", R"(["",0],)", R"(["",0]])"},
    {"json", "[", R"("",)", R"(""])"},
    {"jsonl", "", "[\"\",0]\n", ""},
    {"jsonl", R"({"text":"","label":0)", R"(,"%":0)", "}"},
    {"conll", "", "a b\n\n", ""},
    {"conll", "", "a b\n", ""},
    {"config", R"({"a":[)", "{},", "0]}"},
    {"config", "{", R"("%":0,)", R"("a":0})"},
    {"manifest", R"({"a":[)", "[],", "0]}"},
    {"state", R"({"a":[)", "[],", "0]}"},
    {"run_json", R"({"a":[)", "[],", "0]}"},
    {"int8", R"({"a":[)", "[],", "0]}"},
    {"metrics", "[", "[],", "0]"},
    {"op_policy", "a=[", "0,", "]\n"},
    {"predict_body", R"({"texts":[)", R"("",)", R"(""]})"},
    {"vocab_txt", "[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\n", "%\n", ""},
    {"vocab_json", "{", R"("%":%,)",
     R"("<s>":131073,"<pad>":131074,"</s>":131075,"<unk>":131076,"<mask>":131077,)"
     R"("he":131078,"h":131079,"e":131080,"l":131081,"hel":131082})",
     448},
    {"merges_txt", "", "h e\n", ""},
    {"added_tokens", "{", R"("%":%,)", R"("a":1})"},
    {"special_tokens_map", R"({"a":[)", "[],", "0]}"},
    {"tokenizer_config", R"({"a":[)", "[],", "0]}"},
    {"tokenizer_json",
     R"({"model":{"type":"WordPiece","unk_token":"a","max_input_chars_per_word":9,"continuing_subword_prefix":"##","vocab":{)",
     R"("%":%,)", R"("a":131073}}})"},
    {"tokenizer_json", R"({"model":{"type":"Unigram","unk_id":0,"vocab":[)", R"(["%",0],)", R"(["a",0]]}})", 448},
    {"tokenizer_json", R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[)", R"("a b",)", R"("a b"]}})"},
    {"tokenizer_json", R"({"model":{"type":"BPE","vocab":{},"merges":[]},"added_tokens":[)",
     R"({"id":%,"content":"%"},)", R"({"id":131073,"content":"a"}]})", 640},
};

INSTANTIATE_TEST_SUITE_P(Formats, SmallPartsTest, ::testing::ValuesIn(kSmallParts), [](const auto& one) {
  return std::string(one.param.target) + "_" + std::to_string(one.index);
});

INSTANTIATE_TEST_SUITE_P(Formats,
                         CorpusTest,
                         ::testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace mezzo::fuzz
