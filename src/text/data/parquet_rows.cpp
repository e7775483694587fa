#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "text/data/cells.h"
#include "text/data/parquet_module.h"
#include "text/data/row_formats.h"
#include "text/io/byte_source.h"
#include "text/io/json.h"
#include "text/io/printable.h"
#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;
using Type = JsonReader::Type;

constexpr const char* kModule = "mezzo_parquet.so";

// Arrow's copies of libraries that LibTorch has, too, are to use their own functions; sanitizers refuse that.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kLoading = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kLoading = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

/// Looks beside the library that this code is in, beside the program, and where modules are installed. Empty if the
/// module is missing.
fs::path find_module() {
  std::error_code none;
  std::vector<fs::path> places;
  Dl_info info{};
  // In a program, dli_fname is argv[0], which may be anything.
  if (::dladdr(reinterpret_cast<const void*>(&read_parquet), &info) != 0 && fs::path(info.dli_fname).is_absolute()) {
    places.push_back(fs::canonical(info.dli_fname, none).parent_path());
  }
  places.push_back(fs::canonical("/proc/self/exe", none).parent_path());
  for (const auto& place : places) {
    for (const auto* folder : {".", "../bin", MEZZO_MODULES}) {
      const auto path = place / folder / kModule;
      if (place.is_absolute() && fs::exists(path, none)) return path;
    }
  }
  return {};
}

/// What to do about a module that the loader refuses. Arrow's libraries bear pyarrow's version: libarrow.so.2600 is of
/// pyarrow 26.
std::string advice(const std::string& error) {
  constexpr std::string_view kVersion = ".so.";
  const size_t at =
      error.starts_with("libarrow") || error.starts_with("libparquet") ? error.find(kVersion) : error.npos;
  if (at == error.npos) return "Build mezzo again.";
  const std::string major = std::to_string(std::atoi(error.c_str() + at + kVersion.size()) / 100);
  return "It needs the Python package pyarrow " + major + ": pip install 'pyarrow==" + major +
         ".*', or build mezzo again.";
}

/// Stays loaded.
decltype(&MEZZO_READ_PARQUET) load_module(const std::string& file) {
  const fs::path path = find_module();
  TORCH_CHECK_VALUE(
      !path.empty(), file, ": this build of mezzo cannot read Parquet: ", kModule,
      " is not beside it. Install the Python package pyarrow and build again, or save the file as .jsonl.");
  void* module = ::dlopen(path.c_str(), kLoading);
  void* function = module == nullptr ? nullptr : ::dlsym(module, C10_STRINGIZE(MEZZO_READ_PARQUET));
  if (function == nullptr) {
    const std::string error = ::dlerror();
    TORCH_CHECK_VALUE(false, file, ": Parquet cannot be read by the module beside this mezzo: ", error, ". ",
                      advice(error));
  }
  return reinterpret_cast<decltype(&MEZZO_READ_PARQUET)>(function);
}

std::string_view bytes_of(const MezzoCell& cell) { return {cell.bytes, cell.size}; }

/// Appends a value as JSON, and moves `cell` behind it.
void append_json(std::string& json, const MezzoCell*& cell) {
  const MezzoCell& value = *cell++;
  const bool is_object = value.type == kMezzoObject;
  if (!is_object && value.type != kMezzoList) {
    json += value.type == kMezzoText ? quoted_json(bytes_of(value)) : bytes_of(value);
    return;
  }
  json += is_object ? '{' : '[';
  for (size_t i = 0; i < value.size; ++i) {
    if (i > 0) json += ',';
    if (is_object) json += quoted_json(bytes_of(*cell++)) + ":";
    append_json(json, cell);
  }
  json += is_object ? '}' : ']';
}

/// Takes a value of a column that is read, and moves `cell` behind it.
Cell take_cell(const MezzoCell*& cell, const std::string& column, Where where) {
  constexpr Type kTypes[] = {Type::kNull, Type::kString, Type::kNumber, Type::kBool, Type::kArray};
  const MezzoCell& value = *cell++;
  Cell taken{kTypes[value.type]};
  if (value.type == kMezzoList) {
    for (size_t i = 0; i < value.size; ++i) taken.elements.push_back(take_cell(cell, column, where));
  } else if (value.type != kMezzoNull) {
    taken.text = bytes_of(value);
    TORCH_CHECK_VALUE(find_invalid_utf8(taken.text) == value.size, where(), "column ", quoted_name(column),
                      " holds bytes that are not UTF-8.");
  }
  return taken;
}

struct Reading {
  RowCollector& rows;
  int64_t line = 0;
  std::exception_ptr error = nullptr;

  static bool take(void* context, const MezzoCell* cell, size_t columns) {
    auto& self = *static_cast<Reading*>(context);
    try {
      self.add(cell, columns);
      return !self.rows.full();
    } catch (...) {
      self.error = std::current_exception();
      return false;
    }
  }

  void add(const MezzoCell* cell, size_t columns) {
    ++line;
    const auto where = [&] { return rows.where(line); };
    Row row;
    std::vector<std::string> names;
    for (size_t i = 0; i < columns; ++i) {
      const std::string& name = names.emplace_back(bytes_of(*cell++));
      if (rows.reads(name)) {
        set_cell(row, name, take_cell(cell, name, where), rows, where);
      } else {
        std::string json;
        append_json(json, cell);
        if (rows.options().other_columns()) add_json_member(row.others, name, json);
      }
    }
    check_columns(row, names, rows, where);
    rows.add(std::move(row), line);
  }
};

}  // namespace

void read_parquet(const fs::path& file, RowCollector& rows) {
  const std::string name = file.string();
  const auto source = open_bytes(file);  // throws if it cannot be opened
  TORCH_CHECK_VALUE(fs::is_regular_file(file), name, ": Parquet can only be read from a file on a disk.");
  TORCH_CHECK_VALUE(fs::file_size(file) > 0, name, ": the file is empty.");
  static const auto read = load_module(name);
  const Columns& columns = rows.columns();
  std::vector<const char*> wanted{columns.text.name.c_str(), columns.text_pair.name.c_str()};
  if (columns.label.is_required) wanted.push_back(columns.label.name.c_str());
  for (const Column& flag : columns.flags) wanted.push_back(flag.name.c_str());
  Reading reading{rows};
  const char* message =
      read(file.c_str(), wanted.data(), wanted.size(), rows.options().other_columns(), &Reading::take, &reading);
  if (reading.error) std::rethrow_exception(reading.error);
  if (message == nullptr) return;
  const std::string what = in_one_line(message);
  TORCH_CHECK_VALUE(
      !what.starts_with(kOfArrow), name,
      what.find("crypt") != what.npos
          ? ": the file is encrypted. Save it without encryption."
          : ": the file is damaged, or not Parquet: " + what.substr(std::string_view(kOfArrow).size()) + ".");
  TORCH_CHECK_VALUE(false, name, ": ", what, ".");
}

}  // namespace mezzo::text
