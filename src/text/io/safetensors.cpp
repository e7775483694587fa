#include "mezzo/text/io/safetensors.h"

#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <system_error>
#include <unordered_map>

#include "mezzo/text/io/atomic_file.h"
#include "system/unique_fd.h"
#include "text/io/json.h"
#include "text/io/read_error.h"
#include "text/io/read_file.h"
#include "text/io/utf8.h"

static_assert(std::endian::native == std::endian::little, "mezzo: safetensors data is little-endian");

namespace mezzo::text {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::string_view kMetadataKey = "__metadata__";

struct Dtype {
  std::string_view name;
  uint64_t bits;               // of one element as the file counts them
  at::ScalarType torch_dtype;  // Undefined where torch has none
};

/// In the writer's order: later ones first.
constexpr std::array<Dtype, 22> kDtypes{{
    {"BOOL", 8, at::kBool},
    {"F4", 4, at::ScalarType::Float4_e2m1fn_x2},
    {"F6_E2M3", 6, at::ScalarType::Undefined},
    {"F6_E3M2", 6, at::ScalarType::Undefined},
    {"U8", 8, at::kByte},
    {"I8", 8, at::kChar},
    {"F8_E5M2", 8, at::kFloat8_e5m2},
    {"F8_E4M3", 8, at::kFloat8_e4m3fn},
    {"F8_E8M0", 8, at::kFloat8_e8m0fnu},
    {"F8_E4M3FNUZ", 8, at::kFloat8_e4m3fnuz},
    {"F8_E5M2FNUZ", 8, at::kFloat8_e5m2fnuz},
    {"I16", 16, at::kShort},
    {"U16", 16, at::kUInt16},
    {"F16", 16, at::kHalf},
    {"BF16", 16, at::kBFloat16},
    {"I32", 32, at::kInt},
    {"U32", 32, at::kUInt32},
    {"F32", 32, at::kFloat},
    {"C64", 64, at::kComplexFloat},
    {"F64", 64, at::kDouble},
    {"I64", 64, at::kLong},
    {"U64", 64, at::kUInt64},
}};

struct TensorInfo {
  std::string name;
  const Dtype* dtype = nullptr;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  // from the end of the header
};

/// A file that is open for reading, and as large as it was then.
class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path)
      // Non-blocking, or a pipe would be waited for. It changes nothing for a regular file.
      : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (descriptor_.get() < 0) fail_to_read(path_, errno);
    struct stat status{};
    if (::fstat(descriptor_.get(), &status) != 0) fail_to_read(path_, errno);
    if (!S_ISREG(status.st_mode)) fail_to_read(path_, S_ISDIR(status.st_mode) ? EISDIR : EINVAL);
    size_ = static_cast<uint64_t>(status.st_size);
    changed_ = status.st_mtim;
  }

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_.get(); }
  uint64_t size() const { return size_; }

  void read(uint64_t offset, char* bytes, uint64_t count) const {
    while (count > 0) {
      const ssize_t got = ::pread(descriptor_.get(), bytes, count, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_to_read(path_, errno);
      TORCH_CHECK_VALUE(got > 0, path_.string(), ": ends at ", offset, " bytes, and had ", size_,
                        " when it was opened: it was changed meanwhile. Read it again once it is whole.");
      bytes += got;
      offset += static_cast<uint64_t>(got);
      count -= static_cast<uint64_t>(got);
    }
    struct stat status{};
    const bool is_same = ::fstat(descriptor_.get(), &status) == 0 && status.st_mtim.tv_sec == changed_.tv_sec &&
                         status.st_mtim.tv_nsec == changed_.tv_nsec;
    TORCH_CHECK_VALUE(is_same, path_.string(), ": was changed while it was read. Read it again once it is whole.");
  }

 private:
  std::filesystem::path path_;
  UniqueFd descriptor_;
  uint64_t size_ = 0;
  timespec changed_{};
};

/// A whole file in memory: private, so that no write reaches the file.
class Mapping {
 public:
  explicit Mapping(const OpenFile& file) : size_(file.size()) {
    if (size_ == 0) return;
    data_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.descriptor(), 0);
    if (data_ == MAP_FAILED) fail_to_read(file.path(), errno);
  }
  ~Mapping() {
    if (size_ > 0) munmap(data_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* at(uint64_t offset) const { return static_cast<char*>(data_) + offset; }

  /// Drops the whole pages between two offsets.
  void drop(uint64_t begin, uint64_t end) const {
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const uint64_t first = at::round_up(begin, page), last = end / page * page;
    if (first < last) madvise(at(first), last - first, MADV_DONTNEED);
  }

 private:
  size_t size_;
  void* data_ = nullptr;
};

/// The header's JSON as it stands, with nothing believed yet but that the file holds it.
std::string header_json(const OpenFile& file) {
  constexpr uint64_t kBegin = 256;  // which tells a pointer of Git LFS
  const std::string name = file.path().string();
  std::string begin(std::min(kBegin, file.size()), '\0');
  file.read(0, begin.data(), begin.size());
  check_no_lfs_pointer(name, begin);
  TORCH_CHECK_VALUE(file.size() >= 8, name, ": ", file.size(), " bytes, too short for a safetensors file. ",
                    "It may be cut off: fetch or save it again.");
  uint64_t length = 0;
  std::memcpy(&length, begin.data(), 8);
  TORCH_CHECK_VALUE(length <= kMaxHeaderBytes, name, ": header length ", length, " is above the format's limit of ",
                    kMaxHeaderBytes, ". The file is damaged, or is not a safetensors file.");
  TORCH_CHECK_VALUE(length <= file.size() - 8, name, ": header length ", length, " goes past the end of the file at ",
                    file.size(), " bytes. The file is cut off: fetch or save it again.");
  std::string header(length, '\0');
  file.read(8, header.data(), length);
  const size_t invalid = find_invalid_utf8(header);
  TORCH_CHECK_VALUE(invalid == header.size(), name, ": byte ", 8 + invalid, " of the header is not valid UTF-8. ",
                    "The file is damaged, or is not a safetensors file.");
  TORCH_CHECK_VALUE(header.starts_with('{'), name, ": the header does not start with '{'. ",
                    "The file is damaged, or is not a safetensors file.");
  return header;
}

std::vector<uint64_t> parse_sizes(JsonReader& json, const std::string& what) {
  if (json.peek() != JsonReader::Type::kArray) json.fail(what + ": an array of whole numbers expected");
  std::vector<uint64_t> sizes;
  json.begin_array();
  while (json.next_element()) {
    const auto size = json.peek() == JsonReader::Type::kNumber ? json.unsigned_integer() : std::nullopt;
    if (!size) json.fail(what + ": an array of whole numbers from 0 to 2^64 - 1 expected");
    sizes.push_back(*size);
  }
  return sizes;
}

std::string named(std::string_view tensor) { return in_one_line(fmt::format("tensor '{}'", tensor)); }

const Dtype* parse_dtype(JsonReader& json, const std::string& tensor) {
  if (json.peek() != JsonReader::Type::kString) json.fail(named(tensor) + ": dtype is not a string");
  const std::string name = json.string();
  const auto dtype = std::ranges::find(kDtypes, name, &Dtype::name);
  if (dtype == kDtypes.end()) json.fail(fmt::format("{} has the unknown dtype '{}'", named(tensor), name));
  return &*dtype;
}

TensorInfo parse_tensor(JsonReader& json, std::string name) {
  const std::string tensor = named(name);
  if (json.peek() != JsonReader::Type::kObject) json.fail(tensor + " is not described by an object");
  TensorInfo info;
  std::set<std::string> seen;
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      json.skip();
      continue;
    }
    seen.insert(key);
    if (key == "dtype") {
      info.dtype = parse_dtype(json, name);
    } else if (key == "shape") {
      info.shape = parse_sizes(json, tensor + ": shape");
    } else {
      const auto offsets = parse_sizes(json, tensor + ": data_offsets");
      if (offsets.size() != 2) json.fail(tensor + ": data_offsets must be two numbers");
      info.begin = offsets[0];
      info.end = offsets[1];
    }
  }
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!seen.contains(key)) json.fail(fmt::format("{} has no {}", tensor, key));
  }
  info.name = std::move(name);
  return info;
}

std::map<std::string, std::string> parse_metadata(JsonReader& json) {
  std::map<std::string, std::string> metadata;
  if (json.peek() == JsonReader::Type::kNull) {
    json.skip();
    return metadata;
  }
  if (json.peek() != JsonReader::Type::kObject) json.fail("__metadata__ is not an object");
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (json.peek() != JsonReader::Type::kString) {
      json.fail(fmt::format("__metadata__: the value of '{}' is not a string", key));
    }
    metadata[key] = json.string();
  }
  return metadata;
}

/// shape times element size in bytes, or an error if it is not a whole number of bytes below 2^61.
uint64_t byte_count(const TensorInfo& info, const std::string& file) {
  uint64_t bits = 1;
  bool overflow = false;
  for (const uint64_t size : info.shape) overflow |= __builtin_mul_overflow(bits, size, &bits);
  overflow |= __builtin_mul_overflow(bits, info.dtype->bits, &bits);
  TORCH_CHECK_VALUE(!overflow, file, ": ", named(info.name), ": shape [",
                    fmt::format("{}", fmt::join(info.shape, ", ")),
                    "] is too large for any file. The header is damaged.");
  TORCH_CHECK_VALUE(bits % 8 == 0, file, ": ", named(info.name), ": ", bits, " bits of ", info.dtype->name,
                    " do not fill whole bytes. The header is damaged.");
  return bits / 8;
}

/// Sorts the tensors by their data, and checks that this covers the `size` bytes after the
/// header without hole or overlap.
void check_layout(std::vector<TensorInfo>& tensors, uint64_t size, const std::string& file) {
  std::ranges::stable_sort(tensors, {}, [](const TensorInfo& info) { return std::pair(info.begin, info.end); });
  uint64_t position = 0;
  for (const TensorInfo& info : tensors) {
    TORCH_CHECK_VALUE(info.begin == position && info.end >= info.begin, file, ": ", named(info.name),
                      ": data_offsets [", info.begin, ", ", info.end, "] where data must go on at ", position,
                      ". The header is damaged.");
    const uint64_t bytes = byte_count(info, file);
    TORCH_CHECK_VALUE(info.end - info.begin == bytes, file, ": ", named(info.name), ": data_offsets [", info.begin,
                      ", ", info.end, "] hold ", info.end - info.begin, " bytes where ", info.dtype->name, " [",
                      fmt::format("{}", fmt::join(info.shape, ", ")), "] takes ", bytes, ". The header is damaged.");
    position = info.end;
  }
  TORCH_CHECK_VALUE(position == size, file, ": the header describes ", position,
                    " bytes of tensor data and the file holds ", size, ". The file is ",
                    position > size ? "cut off" : "damaged", ": fetch or save it again.");
}

/// The shape as torch counts elements; nullopt above 2^63 - 1, also of the strides that a zero dimension hides.
std::optional<std::vector<int64_t>> torch_shape(const TensorInfo& info) {
  std::vector<int64_t> shape;
  int64_t stride = 1;
  for (const uint64_t size : info.shape) {
    if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    shape.push_back(static_cast<int64_t>(size));
    if (__builtin_mul_overflow(stride, std::max<int64_t>(shape.back(), 1), &stride)) return std::nullopt;
  }
  if (info.dtype->torch_dtype == at::ScalarType::Float4_e2m1fn_x2) {
    if (shape.empty() || shape.back() % 2 != 0) return std::nullopt;
    shape.back() /= 2;
  }
  return shape;
}

}  // namespace

struct SafetensorsReader::File {
  File(const std::filesystem::path& path, Access access) : name(path.string()), file(path) {
    const std::string header = header_json(file);
    data_offset = 8 + header.size();
    TextInput input(header);
    std::optional<JsonReader> json;
    json.emplace(input, [&] { return fmt::format("{}: header, byte {}: ", name, 8 + json->offset()); });
    json->begin_object();
    for (std::string key; json->next_key(key);) {
      if (key == kMetadataKey) {
        metadata = parse_metadata(*json);
      } else {
        tensors.push_back(parse_tensor(*json, key));
      }
    }
    json->expect_end();
    check_layout(tensors, file.size() - data_offset, name);
    if (access == Access::kMapped) mapping = std::make_shared<Mapping>(file);
    for (size_t i = 0; i < tensors.size(); ++i) index.emplace(tensors[i].name, i);
  }

  const TensorInfo& find(std::string_view tensor) const {
    const auto found = index.find(tensor);
    TORCH_CHECK_VALUE(found != index.end(), name, ": no ", named(tensor), " among its ", tensors.size(),
                      " tensors. Is it the right model?");
    return tensors[found->second];
  }

  std::string name;
  OpenFile file;
  std::shared_ptr<const Mapping> mapping = nullptr;  // with Access::kMapped
  size_t data_offset = 0;
  std::vector<TensorInfo> tensors;
  std::unordered_map<std::string_view, size_t> index;  // into `tensors`, which holds the names
  std::map<std::string, std::string> metadata;
};

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path, Access access)
    : file_(std::make_shared<File>(path, access)) {}

std::vector<std::string> SafetensorsReader::names() const {
  std::vector<std::string> names;
  for (const TensorInfo& info : file_->tensors) names.push_back(info.name);
  return names;
}

bool SafetensorsReader::contains(std::string_view name) const { return file_->index.contains(name); }

const std::map<std::string, std::string>& SafetensorsReader::metadata() const { return file_->metadata; }

void SafetensorsReader::release(std::string_view name) const {
  const TensorInfo& info = file_->find(name);
  if (file_->mapping) file_->mapping->drop(file_->data_offset + info.begin, file_->data_offset + info.end);
}

at::Tensor SafetensorsReader::tensor(std::string_view name) const {
  const TensorInfo& info = file_->find(name);
  const at::ScalarType dtype = info.dtype->torch_dtype;
  TORCH_CHECK_VALUE(dtype != at::ScalarType::Undefined, file_->name, ": ", named(name), " is ", info.dtype->name,
                    ", which torch has no dtype for. Convert the file to another dtype.");
  const auto shape = torch_shape(info);
  TORCH_CHECK_VALUE(shape, file_->name, ": ", named(name), ": torch cannot hold ", info.dtype->name, " of shape [",
                    fmt::format("{}", fmt::join(info.shape, ", ")), "].");
  const uint64_t begin = file_->data_offset + info.begin;
  if (!file_->mapping) {
    at::Tensor read = at::empty(*shape, dtype);
    file_->file.read(begin, static_cast<char*>(read.mutable_data_ptr()), read.nbytes());
    return read;
  }
  char* data = file_->mapping->at(begin);
  if (reinterpret_cast<uintptr_t>(data) % (info.dtype->bits < 8 ? 1 : info.dtype->bits / 8) != 0) {
    at::Tensor copy = at::empty(*shape, dtype);
    // An empty tensor has no address, which memcpy must not be given.
    std::copy_n(data, copy.nbytes(), static_cast<char*>(copy.mutable_data_ptr()));
    return copy;
  }
  return at::from_blob(data, *shape, [mapping = file_->mapping](void*) {}, at::TensorOptions(dtype));
}

namespace {

struct NamedTensor {
  const std::string* name;
  const at::Tensor* tensor;
  const Dtype* dtype;
};

/// The tensors that can be written, in the order of writing.
std::vector<NamedTensor> prepare(const NamedTensors& tensors, const std::string& file) {
  std::vector<NamedTensor> prepared;
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(find_invalid_utf8(name) == name.size() && name != kMetadataKey, file,
                      ": a tensor cannot be named '", replace_invalid_utf8(name),
                      "'. Use UTF-8 text other than __metadata__.");
    TORCH_CHECK_VALUE(tensor.defined() && tensor.layout() == at::kStrided, file, ": ", named(name), " is ",
                      tensor.defined() ? "sparse; save to_dense() of it." : "undefined; leave it out.");
    const auto dtype = std::ranges::find(kDtypes, tensor.scalar_type(), &Dtype::torch_dtype);
    TORCH_CHECK_VALUE(dtype != kDtypes.end(), file, ": ", named(name), " is ", tensor.scalar_type(),
                      ", which the safetensors format has no dtype for. Convert it to another dtype.");
    TORCH_CHECK_VALUE(dtype->bits >= 8 || tensor.dim() > 0, file, ": ", named(name), ": a scalar of ",
                      tensor.scalar_type(), " cannot be saved. Give it a dimension.");
    prepared.push_back({&name, &tensor, &*dtype});
  }
  std::ranges::sort(prepared, [](const NamedTensor& a, const NamedTensor& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : *a.name < *b.name;
  });
  std::set<std::string_view> seen;
  for (const NamedTensor& tensor : prepared) {
    TORCH_CHECK_VALUE(seen.insert(*tensor.name).second, file, ": two tensors are named '", *tensor.name,
                      "'. Give each its own name.");
  }
  return prepared;
}

std::string metadata_json(const std::map<std::string, std::string>& metadata, const std::string& file) {
  std::vector<std::string> members;
  for (const auto& [key, value] : metadata) {
    TORCH_CHECK_VALUE(find_invalid_utf8(key) == key.size() && find_invalid_utf8(value) == value.size(), file,
                      ": metadata '", replace_invalid_utf8(key), "' is not valid UTF-8.");
    members.push_back(quoted_json(key) + ":" + quoted_json(value));
  }
  return fmt::format("{{{}}}", fmt::join(members, ","));
}

std::string header(const std::vector<NamedTensor>& tensors,
                   const std::map<std::string, std::string>& metadata,
                   const std::string& file) {
  std::vector<std::string> members;
  if (!metadata.empty()) members.push_back("\"__metadata__\":" + metadata_json(metadata, file));
  uint64_t offset = 0;
  for (const NamedTensor& named : tensors) {
    auto shape = named.tensor->sizes().vec();
    if (named.dtype->bits == 4) shape.back() *= 2;
    const uint64_t end = offset + named.tensor->numel() * named.tensor->element_size();
    members.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                  quoted_json(*named.name), named.dtype->name, fmt::join(shape, ","), offset, end));
    offset = end;
  }
  std::string json = fmt::format("{{{}}}", fmt::join(members, ","));
  json.resize((json.size() + 7) / 8 * 8, ' ');  // so that the data after it is aligned
  TORCH_CHECK_VALUE(json.size() <= kMaxHeaderBytes, file, ": a header of ", json.size(),
                    " bytes is above the format's limit of ", kMaxHeaderBytes,
                    ". Save fewer tensors or less metadata.");
  return json;
}

}  // namespace

std::vector<std::string> shards_of(const std::filesystem::path& index_json) {
  const auto index = read_json_object(index_json);
  const auto map = index.find("weight_map");
  TORCH_CHECK_VALUE(map != index.end() && map->is_object() && !map->empty(), index_json.string(),
                    ": weight_map is not an object of tensors and files. The file is damaged.");
  std::set<std::string> shards;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    TORCH_CHECK_VALUE(!name.empty() && name.front() != '.' && name.find('/') == name.npos, index_json.string(),
                      ": weight_map: ", named(tensor), " is in ", file.dump(), ", which is not a file of this folder.");
    shards.insert(name);
  }
  return {shards.begin(), shards.end()};
}

std::string save_safetensors(const std::filesystem::path& path,
                             const NamedTensors& tensors,
                             const std::map<std::string, std::string>& metadata) {
  const std::vector<NamedTensor> prepared = prepare(tensors, path.string());
  const std::string json = header(prepared, metadata, path.string());
  const uint64_t length = json.size();
  AtomicFile file(path);
  file.write(&length, sizeof(length));
  file.write(json);
  for (const NamedTensor& named : prepared) {
    const at::Tensor plain = named.tensor->detach().cpu().resolve_conj().resolve_neg().contiguous();
    file.write(plain.const_data_ptr(), plain.nbytes());
  }
  return file.commit();
}

}  // namespace mezzo::text
