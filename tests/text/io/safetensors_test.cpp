#include "mezzo/text/io/safetensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "text/scratch_folder.h"

namespace mezzo::text {
namespace {

std::string file_bytes(std::string_view header, std::string_view data = "") {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8).append(header).append(data);
}

std::string one_tensor(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"a":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}}}})", dtype, shape, offsets);
}

const std::string kOneFloat = one_tensor("F32", "1", "0,4");

/// Reads all there is to read, so that a wrong bound shows (under AddressSanitizer, or as a crash).
void read_all(const std::filesystem::path& path) {
  const SafetensorsReader reader(path);
  for (const std::string& name : reader.names()) {
    try {
      const at::Tensor tensor = reader.tensor(name);
      (void)tensor.clone();
    } catch (const c10::ValueError&) {  // a dtype or shape torch does not have
    }
  }
}

class SafetensorsTest : public testing::Test {
 protected:
  std::string error_of(std::string_view bytes) {
    const auto path = folder_.write("m", bytes);
    return value_error([&] { read_all(path); }, folder_);
  }
  std::string error_of_header(std::string_view header, std::string_view data = "") {
    return error_of(file_bytes(header, data));
  }
  SafetensorsReader open(std::string_view header, std::string_view data = "") {
    return SafetensorsReader(folder_.write("m", file_bytes(header, data)));
  }

  const ScratchFolder folder_;
};

TEST_F(SafetensorsTest, ReadsTensorsWithoutACopyAndKeepsTheMappingAlive) {
  at::Tensor first, second;
  {
    const SafetensorsReader reader = open(kOneFloat + "  ", std::string_view("\0\0\x80\x3f", 4));
    first = reader.tensor("a");
    second = SafetensorsReader(reader).tensor("a");
  }
  EXPECT_TRUE(at::equal(first, at::ones({1}))) << first;
  EXPECT_EQ(first.const_data_ptr(), second.const_data_ptr());
  first.fill_(2);  // not to be done, but it must not reach the file
  EXPECT_TRUE(at::equal(SafetensorsReader(folder_ / "m").tensor("a"), at::ones({1})));
}

TEST_F(SafetensorsTest, CopiesDataThatIsNotAligned) {
  const auto reader = open(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                           R"("b":{"dtype":"I64","shape":[],"data_offsets":[1,9]}})",
                           std::string_view("\x05\x07\0\0\0\0\0\0\0", 9));
  EXPECT_EQ(reader.tensor("b").item<int64_t>(), 7);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(reader.tensor("b").const_data_ptr()) % 8, 0);
}

TEST_F(SafetensorsTest, ListsNamesInTheOrderOfTheirData) {
  const auto reader = open(R"({"z":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"__metadata__":{"k":"v","":"ü\n"},)"
                           R"("a":{"dtype":"U8","shape":[0,9],"data_offsets":[2,2]},)"
                           R"("m":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                           "xy");
  EXPECT_EQ(reader.names(), (std::vector<std::string>{"m", "z", "a"}));
  EXPECT_TRUE(reader.contains("a"));
  EXPECT_FALSE(reader.contains("__metadata__"));
  EXPECT_EQ(reader.metadata(), (std::map<std::string, std::string>{{"", "ü\n"}, {"k", "v"}}));
  EXPECT_EQ(reader.tensor("a").sizes(), (at::IntArrayRef{0, 9}));
}

TEST_F(SafetensorsTest, AcceptsAnEmptyHeaderAndUnknownFields) {
  EXPECT_TRUE(open("{}").names().empty());
  EXPECT_TRUE(open(R"({"__metadata__":null})").metadata().empty());
  open(R"({"a":{"dtype":"F32","x":1,"shape":[0],"z":[{"y":[null,true,false,-1.5e+3,"z"]}],"data_offsets":[0,0]}})");
}

TEST_F(SafetensorsTest, RefusesAFileThatIsTooShortOrCutOff) {
  EXPECT_EQ(error_of(""), "m: 0 bytes, too short for a safetensors file. It may be cut off: fetch or save it again.");
  EXPECT_EQ(error_of("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 437951328\n"),
            "m: holds a pointer of Git LFS in place of the file; `git lfs pull` fetches the file itself");
  EXPECT_EQ(error_of("1234567"),
            "m: 7 bytes, too short for a safetensors file. It may be cut off: fetch or save it again.");
  EXPECT_EQ(
      error_of(file_bytes("{}").substr(0, 9)),
      "m: header length 2 goes past the end of the file at 9 bytes. The file is cut off: fetch or save it again.");
  EXPECT_EQ(error_of(std::string(8, '\xff')),
            "m: header length 18446744073709551615 is above the format's limit of 100000000. "
            "The file is damaged, or is not a safetensors file.");
  EXPECT_EQ(error_of_header(kOneFloat, "123"),
            "m: the header describes 4 bytes of tensor data and the file holds 3. "
            "The file is cut off: fetch or save it again.");
  EXPECT_EQ(error_of_header(kOneFloat, "12345"),
            "m: the header describes 4 bytes of tensor data and the file holds 5. "
            "The file is damaged: fetch or save it again.");
}

TEST_F(SafetensorsTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(value_error([&] { SafetensorsReader reader(folder_ / "none"); }, folder_),
            "none: cannot be read: No such file or directory.");
  std::filesystem::create_directory(folder_ / "folder");
  EXPECT_EQ(value_error([&] { SafetensorsReader reader(folder_ / "folder"); }, folder_),
            "folder: cannot be read: Is a directory.");
  EXPECT_EQ(value_error([&] { SafetensorsReader reader("/dev/zero"); }, folder_),
            "/dev/zero: cannot be read: Invalid argument.");
}

TEST_F(SafetensorsTest, RefusesAHeaderThatIsNoJsonObject) {
  EXPECT_EQ(error_of_header("{\"\xff\":1}"),
            "m: byte 10 of the header is not valid UTF-8. The file is damaged, or is not a safetensors file.");
  const std::string no_brace =
      "m: the header does not start with '{'. The file is damaged, or is not a safetensors file.";
  EXPECT_EQ(error_of_header(""), no_brace);
  EXPECT_EQ(error_of_header(" {}"), no_brace);
  EXPECT_EQ(error_of_header("[]"), no_brace);
  EXPECT_EQ(error_of_header("\xEF\xBB\xBF{}"), no_brace);
  EXPECT_EQ(error_of_header("{"), "m: header, byte 9: the JSON ends where a string is expected.");
  EXPECT_EQ(error_of_header(std::string_view("{}\0", 3)),
            "m: header, byte 10: not valid JSON: more text after its end.");
  EXPECT_EQ(error_of_header(R"({"a":1,})"), "m: header, byte 13: tensor 'a' is not described by an object.");
  EXPECT_EQ(error_of_header(kOneFloat.substr(0, kOneFloat.size() - 1) + ",}", "1234"),
            "m: header, byte 62: not valid JSON: a comma before the closing bracket.");
}

TEST_F(SafetensorsTest, RefusesNestingThatCouldExhaustTheStack) {
  const auto nested = [](size_t depth) {
    return R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":)" + std::string(depth, '[') +
           std::string(depth, ']') + "}}";
  };
  open(nested(125));
  EXPECT_EQ(error_of_header(nested(126)), "m: header, byte 191: JSON nested more than 127 deep.");
  EXPECT_EQ(error_of_header(nested(1'000'000)), "m: header, byte 191: JSON nested more than 127 deep.");
}

TEST_F(SafetensorsTest, RefusesRepeatedNames) {
  EXPECT_EQ(error_of_header(kOneFloat.substr(0, kOneFloat.size() - 1) + "," + kOneFloat.substr(1), "1234"),
            "m: header, byte 65: the key 'a' occurs twice in one object. Keep one.");
  EXPECT_EQ(error_of_header(R"({"__metadata__":{},"__metadata__":{}})"),
            "m: header, byte 41: the key '__metadata__' occurs twice in one object. Keep one.");
  EXPECT_EQ(error_of_header(R"({"__metadata__":{"k":"1","k":"2"}})"),
            "m: header, byte 36: the key 'k' occurs twice in one object. Keep one.");
  EXPECT_EQ(error_of_header(R"({"a":{"dtype":"F32","dtype":"F32","shape":[0],"data_offsets":[0,0]}})"),
            "m: header, byte 35: the key 'dtype' occurs twice in one object. Keep one.");
}

TEST_F(SafetensorsTest, RefusesMetadataOtherThanStrings) {
  EXPECT_EQ(error_of_header(R"({"__metadata__":[]})"), "m: header, byte 24: __metadata__ is not an object.");
  EXPECT_EQ(error_of_header(R"({"__metadata__":{"k":1}})"),
            "m: header, byte 29: __metadata__: the value of 'k' is not a string.");
}

TEST_F(SafetensorsTest, RefusesATensorWithoutAllItsFieldsOrOfWrongTypes) {
  EXPECT_EQ(error_of_header(R"({"a":{"shape":[0],"data_offsets":[0,0]}})"),
            "m: header, byte 47: tensor 'a' has no dtype.");
  EXPECT_EQ(error_of_header(R"({"a":["F32",[0],[0,0]]})"),
            "m: header, byte 13: tensor 'a' is not described by an object.");
  EXPECT_EQ(error_of_header(R"({"a":{"dtype":3}})"), "m: header, byte 22: tensor 'a': dtype is not a string.");
  EXPECT_EQ(error_of_header(one_tensor("F33", "1", "0,4"), "1234"),
            "m: header, byte 27: tensor 'a' has the unknown dtype 'F33'.");
  EXPECT_EQ(error_of_header(R"({"a":{"shape":1}})"),
            "m: header, byte 22: tensor 'a': shape: an array of whole numbers expected.");
  for (const char* size : {"-1", "-0", "1.0", "1e0", "18446744073709551616", "null", "\"1\"", "[1]"}) {
    EXPECT_NE(error_of_header(one_tensor("F32", size, "0,4"), "1234")
                  .find("tensor 'a': shape: an array of whole numbers from 0 to 2^64 - 1 expected"),
              std::string::npos)
        << size;
  }
  EXPECT_EQ(error_of_header(one_tensor("F32", "1", "0,4,8"), "1234"),
            "m: header, byte 62: tensor 'a': data_offsets must be two numbers.");
}

TEST_F(SafetensorsTest, RefusesOffsetsThatLeaveHolesOverlapOrRunBackwards) {
  EXPECT_EQ(error_of_header(one_tensor("F32", "1", "2,6"), "123456"),
            "m: tensor 'a': data_offsets [2, 6] where data must go on at 0. The header is damaged.");
  EXPECT_EQ(
      error_of_header(one_tensor("F32", "1", "0,18446744073709551615"), "1234"),
      "m: tensor 'a': data_offsets [0, 18446744073709551615] hold 18446744073709551615 bytes where F32 [1] takes 4. "
      "The header is damaged.");
  EXPECT_EQ(error_of_header(one_tensor("F32", "1", "4,0"), "1234"),
            "m: tensor 'a': data_offsets [4, 0] where data must go on at 0. The header is damaged.");
  EXPECT_EQ(error_of_header(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                            R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                            "123"),
            "m: tensor 'b': data_offsets [1, 3] where data must go on at 2. The header is damaged.");
}

TEST_F(SafetensorsTest, RefusesShapesThatOverflow) {
  for (const char* shape : {"18446744073709551615, 2", "4611686018427387904", "18446744073709551615, 2, 0"}) {
    EXPECT_EQ(error_of_header(one_tensor("F32", shape, "0,0")),
              fmt::format("m: tensor 'a': shape [{}] is too large for any file. The header is damaged.", shape));
  }
}

TEST_F(SafetensorsTest, AcceptsAZeroSizeTensorThatTorchCannotHoldAndSaysSoWhenAsked) {
  const auto reader = open(one_tensor("F32", "18446744073709551615, 0", "0,0"));
  EXPECT_EQ(value_error([&] { reader.tensor("a"); }, folder_),
            "m: tensor 'a': torch cannot hold F32 of shape [18446744073709551615, 0].");
  const auto strides = open(one_tensor("U8", "0, 4611686018427387904, 4611686018427387904", "0,0"));
  EXPECT_THROW(strides.tensor("a"), c10::ValueError);
}

TEST_F(SafetensorsTest, ChecksThatSubByteTensorsFillWholeBytes) {
  EXPECT_EQ(open(one_tensor("F4", "2,4", "0,4"), "1234").tensor("a").sizes(), (at::IntArrayRef{2, 2}));
  EXPECT_EQ(error_of_header(one_tensor("F4", "7", "0,4"), "1234"),
            "m: tensor 'a': 28 bits of F4 do not fill whole bytes. The header is damaged.");
  const auto reader = open(one_tensor("F6_E2M3", "4", "0,3"), "123");
  EXPECT_EQ(value_error([&] { reader.tensor("a"); }, folder_),
            "m: tensor 'a' is F6_E2M3, which torch has no dtype for. Convert the file to another dtype.");
}

TEST_F(SafetensorsTest, SaysWhichTensorIsMissing) {
  const auto reader = open("{}");
  EXPECT_EQ(value_error([&] { reader.tensor("bert.x"); }, folder_),
            "m: no tensor 'bert.x' among its 0 tensors. Is it the right model?");
}

TEST_F(SafetensorsTest, WritesAFileThatReadsBackEqual) {
  const auto strided = at::arange(12).reshape({3, 4}).t();
  save_safetensors(folder_ / "m",
                   {{"strided", strided},
                    {"half", at::rand({3}).to(at::kHalf)},
                    {"scalar", at::scalar_tensor(1.5)},
                    {"none", at::empty({0, 3})},
                    {"conj", at::complex(at::ones({2}), at::ones({2})).conj()}},
                   {{"format", "pt"}});
  const SafetensorsReader reader(folder_ / "m");
  EXPECT_EQ(reader.names(), (std::vector<std::string>{"strided", "conj", "none", "scalar", "half"}));
  EXPECT_TRUE(at::equal(reader.tensor("strided"), strided));
  EXPECT_TRUE(at::equal(reader.tensor("conj"), at::complex(at::ones({2}), -at::ones({2}))));
  EXPECT_EQ(reader.tensor("scalar").item<float>(), 1.5f);
  EXPECT_EQ(reader.metadata().at("format"), "pt");
}

TEST_F(SafetensorsTest, ReplacesAFileThatIsStillMapped) {
  save_safetensors(folder_ / "m", {{"a", at::ones({1000})}});
  const at::Tensor old = SafetensorsReader(folder_ / "m").tensor("a");
  save_safetensors(folder_ / "m", {{"a", at::zeros({1})}});
  EXPECT_TRUE(at::equal(old, at::ones({1000})));
}

TEST_F(SafetensorsTest, RefusesWhatTheFormatCannotHoldAndKeepsTheOldFile) {
  folder_.write("m", "old");
  const auto error = [&](const std::string& name, const at::Tensor& tensor) {
    return value_error([&] { save_safetensors(folder_ / "m", {{"a", at::ones({1})}, {name, tensor}}); }, folder_);
  };
  EXPECT_EQ(error("a", at::ones({1})), "m: two tensors are named 'a'. Give each its own name.");
  EXPECT_EQ(error("__metadata__", at::ones({1})),
            "m: a tensor cannot be named '__metadata__'. Use UTF-8 text other than __metadata__.");
  EXPECT_EQ(error("\xff", at::ones({1})),
            "m: a tensor cannot be named '\xEF\xBF\xBD'. Use UTF-8 text other than __metadata__.");
  EXPECT_EQ(error("b", at::Tensor()), "m: tensor 'b' is undefined; leave it out.");
  EXPECT_EQ(error("b", at::ones({2, 2}).to_sparse()), "m: tensor 'b' is sparse; save to_dense() of it.");
  EXPECT_EQ(
      error("b", at::ones({1}, at::kComplexDouble)),
      "m: tensor 'b' is ComplexDouble, which the safetensors format has no dtype for. Convert it to another dtype.");
  EXPECT_EQ(value_error([&] { save_safetensors(folder_ / "m", {}, {{"k", "\xff"}}); }, folder_),
            "m: metadata 'k' is not valid UTF-8.");
  EXPECT_EQ(ScratchFolder::read(folder_ / "m"), "old");
}

TEST_F(SafetensorsTest, RefusesAFileCutOffAtAnyByte) {
  save_safetensors(folder_ / "whole", {{"a", at::rand({3})}, {"b", at::arange(2)}}, {{"format", "pt"}});
  const std::string bytes = ScratchFolder::read(folder_ / "whole");
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_NE(error_of(std::string_view(bytes).substr(0, length)), "(nothing was thrown)") << length << " bytes";
  }
}

TEST_F(SafetensorsTest, NeverReadsOutsideTheFileWhateverItSays) {
  save_safetensors(folder_ / "whole", {{"a", at::rand({3})}, {"b\n", at::arange(2)}, {"e", at::empty({0})}},
                   {{"format", "pt"}});
  const std::string whole = ScratchFolder::read(folder_ / "whole");
  static constexpr std::string_view kBytes = "{}[]\",:0123456789\\u-.eE \n\xff\x80tfn_FIU";
  std::mt19937 random(1);
  size_t accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = whole;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const size_t at = random() % bytes.size();
      const char byte = random() % 8 == 0 ? static_cast<char>(random()) : kBytes[random() % kBytes.size()];
      switch (random() % 4) {
        case 0: bytes.insert(at, 1, byte); break;
        case 1: bytes.erase(at, 1 + random() % 4); break;
        default: bytes[at] = byte;
      }
    }
    accepted += error_of(bytes) == "(nothing was thrown)";
  }
  EXPECT_GT(accepted, 200) << "edits that leave the header valid are to be among them";
}

}  // namespace
}  // namespace mezzo::text
