#include "text/tokenizers/double_array_trie.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>

namespace mezzo::text {
namespace {

using Keys = std::vector<std::string>;

DoubleArrayTrie trie_of(const Keys& keys) {
  std::vector<std::pair<std::string_view, int32_t>> pairs;
  for (size_t i = 0; i < keys.size(); ++i) pairs.emplace_back(keys[i], static_cast<int32_t>(i));
  return DoubleArrayTrie(std::move(pairs));
}

/// Words over the given letters.
Keys random_keys(size_t count, std::string_view letters, size_t longest, std::mt19937& random) {
  Keys keys;
  for (size_t i = 0; i < count; ++i) {
    std::string key(random() % (longest + 1), '\0');
    for (char& c : key) c = letters[random() % letters.size()];
    keys.push_back(std::move(key));
  }
  return keys;
}

TEST(DoubleArrayTrieTest, FindsItsKeysAndNothingElse) {
  std::mt19937 random(1);
  std::string all_bytes;
  for (int byte = 0; byte < 256; ++byte) all_bytes.push_back(static_cast<char>(byte));
  for (const std::string& letters : {std::string("ab"), std::string("\0\xff", 2), all_bytes}) {
    for (const size_t longest : {3, 12}) {
      const Keys keys = random_keys(3000, letters, longest, random);
      std::map<std::string_view, int32_t> expected;
      for (size_t i = 0; i < keys.size(); ++i) expected.emplace(keys[i], static_cast<int32_t>(i));
      const DoubleArrayTrie trie = trie_of(keys);
      for (const std::string& key : random_keys(3000, letters, longest, random)) {
        const auto found = expected.find(key);
        ASSERT_EQ(trie.find(key), found == expected.end() ? -1 : found->second);
      }
      for (const auto& [key, id] : expected) ASSERT_EQ(trie.find(key), id);
    }
  }
  EXPECT_EQ(trie_of({}).find("a"), -1);
  EXPECT_EQ(trie_of({}).find(""), -1);
}

/// A binary tree of the given depth, whose two letters lie far apart.
Keys far_apart(size_t depth) {
  Keys keys;
  for (size_t i = 0; i < size_t{1} << depth; ++i) {
    std::string key(depth, '!');
    for (size_t bit = 0; bit < depth; ++bit) key[bit] = (i >> bit & 1) != 0 ? '\xF4' : '!';
    keys.push_back(std::move(key));
  }
  return keys;
}

TEST(DoubleArrayTrieTest, TakesWorkAndRoomInProportionToItsKeys) {
  std::mt19937 random(2);
  std::string text(1 << 18, ' ');
  for (char& c : text) c = "abcdefgh\",[]{}: 0123"[random() % 20];
  std::string comb;  // at each letter of a long key another one ends
  for (int i = 0; i < 4000; ++i) comb.push_back(static_cast<char>('a' + random() % 26));

  const std::map<std::string, std::function<Keys(size_t)>> shapes = {
      {"one line that is a whole file", [&](size_t n) { return Keys{text.substr(0, n << 12)}; }},
      {"words", [&](size_t n) { return random_keys(n << 8, "abcdefghijklmnopqrstuvwxyz", 9, random); }},
      {"any bytes", [&](size_t n) { return random_keys(n << 8, text, 9, random); }},
      {"letters far apart", [&](size_t n) { return far_apart(8 + std::countr_zero(n)); }},
      {"a comb", [&](size_t n) {
         Keys keys;
         for (size_t i = 0; i < n << 5; ++i) keys.push_back(comb.substr(0, i) + "\xF4");
         return keys;
       }}};
  for (const auto& [name, keys_of] : shapes) {
    const DoubleArrayTrie small = trie_of(keys_of(8)), large = trie_of(keys_of(64));  // eight times the keys
    EXPECT_LT(large.size(), 16 * small.size()) << name;
    // A node with several children is tried at 64 places at most.
    EXPECT_LT(large.places_tried(), 100 * large.size()) << name;
  }
}

}  // namespace
}  // namespace mezzo::text
