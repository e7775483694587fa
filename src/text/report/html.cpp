#include "text/report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "text/io/utf8.h"
#include "text/report/report_style.h"

namespace mezzo::text {
namespace {

bool xml_allows(char32_t c) {
  const bool is_control = (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c < 0xA0);
  return !is_control && c != 0xFFFE && c != 0xFFFF;
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const char32_t c = take_code_point(text);
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default:
        if (xml_allows(c)) {
          append_utf8(out, c);
        }
    }
  }
  return out;
}

std::string escape_with_flags(std::string_view text) {
  static const std::regex flag("(^|\\s)(--[a-z][a-z0-9-]*)");
  return std::regex_replace(escape_html(text), flag, "$1<span class=\"flag\">$2</span>");
}

std::string scroll_region(std::string_view name, std::string_view classes) {
  return "<div class=\"" + std::string(classes) + "\" tabindex=\"0\" role=\"region\" aria-label=\"" +
         escape_html(name) + "\">";
}

std::string section(std::string_view title, const std::string& body) {
  if (body.empty()) return "";
  std::string id;
  for (const char c : title.substr(0, title.find(" of "))) id += c == ' ' ? '-' : c;
  return fmt::format("<section id=\"{}\"><h2>{}</h2>{}</section>\n", id, title, body);
}

std::string contents(std::string_view body) {
  constexpr std::string_view kId = "<section id=\"";
  std::string links;
  for (size_t at = body.find(kId); at != std::string_view::npos; at = body.find(kId, at)) {
    at += kId.size();
    const std::string id(body.substr(at, body.find('"', at) - at));
    std::string name = id;
    std::ranges::replace(name, '-', ' ');
    links += fmt::format("<a href=\"#{}\">{}</a>\n", id, name);
  }
  return "<nav aria-label=\"Contents\">\n" + links + "</nav>\n";
}

std::string table_head(const std::vector<std::string>& heads, std::string_view classes) {
  std::string out = fmt::format("<table class=\"{}\"><thead><tr>", classes);
  for (const std::string& head : heads) out += "<th scope=\"col\">" + escape_html(head) + "</th>";
  return out + "</tr></thead><tbody>\n";
}

std::string bar_cell(double share, const std::string& text) {
  return fmt::format("<td class=\"bar\" style=\"--w:{:.1f}%\">{}</td>", 100 * share, text);
}

std::string format_share(double share) { return share >= 0 && share <= 1 ? fmt::format("{:.1f} %", 100 * share) : "–"; }

std::string render_page(std::string_view title, std::string_view body) {
  std::string page =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      // Nothing may run or load, whatever a label is called: the second line of defence behind the escaping.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
      "<title>";
  page += escape_html(title);
  page += "</title>\n<style>";
  page += kReportStyle;
  page += "</style>\n</head>\n<body>\n<main>\n";
  page += body;
  return page + "</main>\n</body>\n</html>\n";
}

}  // namespace mezzo::text
