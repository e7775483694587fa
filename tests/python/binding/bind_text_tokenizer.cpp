#include "bindings.h"
#include "mezzo/text/tokenizers/tokenizer.h"
#include "text/models/known_config_fields.h"
#include "text/tokenizers/tokenizer_config.h"

namespace {

using mezzo::text::Tokenizer;

/// str or bytes, so that texts which are no UTF-8 can be tried too. A view into the Python object.
std::string_view view(const py::handle& text) {
  if (PyBytes_Check(text.ptr())) {
    return {PyBytes_AS_STRING(text.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(text.ptr()))};
  }
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw py::error_already_set();
  return {data, static_cast<size_t>(size)};
}

py::tuple as_tuple(const mezzo::text::Encoding& encoding) {
  return py::make_tuple(encoding.input_ids, encoding.token_type_ids, encoding.truncated);
}

void bind_encoding(py::class_<Tokenizer, std::shared_ptr<Tokenizer>>& tokenizer) {
  tokenizer
      .def(
          "encode",
          [](const Tokenizer& self, const py::object& text, int64_t max_length) {
            return as_tuple(self.encode(view(text), max_length));
          },
          py::arg("text"), py::arg("max_length") = 0)
      .def(
          "encode_pair",
          [](const Tokenizer& self, const py::object& text, const py::object& pair, int64_t max_length) {
            return as_tuple(self.encode(view(text), view(pair), max_length));
          },
          py::arg("text"), py::arg("pair"), py::arg("max_length") = 0)
      .def("encode_windows",
           [](const Tokenizer& self, const py::object& text, int64_t max_length, int64_t stride) {
             std::vector<std::vector<int32_t>> windows;
             for (auto& window : self.encode_windows(view(text), max_length, stride)) {
               windows.push_back(std::move(window.input_ids));
             }
             return windows;
           })
      .def(
          "encode_words",
          [](const Tokenizer& self, const std::vector<std::string>& words, int64_t max_length) {
            const auto encoding = self.encode_words(words, max_length);
            return py::make_tuple(encoding.input_ids, encoding.token_type_ids, encoding.truncated, encoding.word_ids);
          },
          py::arg("words"), py::arg("max_length") = 0)
      .def(
          "encode_batch",
          [](const Tokenizer& self, const py::list& texts, int64_t max_length) {
            std::vector<std::string_view> views;
            for (const auto& text : texts) views.push_back(view(text));
            std::vector<std::vector<int32_t>> ids(views.size());
            {
              py::gil_scoped_release release;
              for (size_t i = 0; i < views.size(); ++i) ids[i] = std::move(self.encode(views[i], max_length).input_ids);
            }
            return ids;
          },
          py::arg("texts"), py::arg("max_length") = 0)
      .def("seconds_to_encode",
           [](const Tokenizer& self, const py::list& texts) {
             std::vector<std::string_view> views;
             for (const auto& text : texts) views.push_back(view(text));
             const auto start = std::chrono::steady_clock::now();
             size_t count = 0;
             for (std::string_view text : views) count += self.encode(text).input_ids.size();
             const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
             return std::make_pair(seconds.count(), count);
           })
      .def("split_words", [](const Tokenizer& self, const py::object& text) { return self.split_words(view(text)); })
      .def(
          "save",
          [](const Tokenizer& self, const std::string& folder, bool token_types, bool words) {
            self.save(folder, mezzo::text::TokenizerSaveOptions().token_types(token_types).words(words));
          },
          py::arg("folder"), py::arg("token_types") = true, py::arg("words") = false)
      .def("token", &Tokenizer::token)
      .def_property_readonly("pad_id", &Tokenizer::pad_id)
      .def_property_readonly("vocab_size", &Tokenizer::vocab_size)
      .def_property_readonly("model_max_length", &Tokenizer::model_max_length);
}

}  // namespace

void bind_text_tokenizer(py::module_& m) {
  // Of each known field its name, and whether it is "read", has "no effect", or takes "only" some values.
  const auto fields_of = [](std::span<const mezzo::text::KnownFields> tables, std::string_view kind) {
    std::map<std::string, std::string> fields;
    for (const auto& table : tables) {
      if (!table.has_kind(kind)) continue;
      for (const auto& field : table.fields) {
        using mezzo::text::FieldUse;
        fields[std::string(field.name)] = field.use == FieldUse::kRead       ? "read"
                                          : field.use == FieldUse::kNoEffect ? "no effect"
                                                                             : "only";
      }
    }
    return fields;
  };
  m.def("known_config_fields",
        [=](const std::string& model_type) { return fields_of(mezzo::text::known_config_fields(), model_type); });
  m.def("known_tokenizer_fields", [=] { return fields_of(mezzo::text::known_tokenizer_fields(), ""); });

  py::class_<Tokenizer, std::shared_ptr<Tokenizer>> tokenizer(m, "Tokenizer");
  tokenizer.def_static("from_pretrained", [](const std::string& folder) {
    return std::const_pointer_cast<Tokenizer>(Tokenizer::from_pretrained(folder));
  });
  bind_encoding(tokenizer);
}
