// SPDX-License-Identifier: Apache-2.0
// The configuration file: flat TOML (key = "string", 'string', a whole number, true, false or, of a list, an
// array of strings on one line; comments) and tables [[quota]] behind it, read by hand because the parser
// that the distribution has breaks on bytes that a broken file may hold.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/format.h"
#include "base/nearest.h"
#include "node/options.h"

namespace cistern::node {
namespace {

constexpr std::size_t kMaxConfigBytes = 1u << 20;  // thousands of times what all settings take
constexpr std::string_view kBlank = " \t\r";
constexpr std::string_view kValueForms =
    "a value is a string (\"4GiB\"), a whole number, true, false or, of a list, [\"...\", \"...\"] on one "
    "line";

bool IsKeyCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

// One line, taken from the front.
class Line {
 public:
  explicit Line(std::string_view text) : rest_(text) { SkipBlank(); }

  // At the end, or before a comment.
  bool done() const { return rest_.empty() || rest_.front() == '#'; }

  std::string_view Key() { return Take(std::ranges::find_if_not(rest_, IsKeyCharacter) - rest_.begin()); }

  bool Equals() {
    if (!rest_.starts_with('=')) return false;
    Take(1);
    return true;
  }

  bool AtArray() const { return rest_.starts_with('['); }

  // [ VALUE, VALUE ]; a comma may follow the last.
  Result<std::vector<std::string>> Array() {
    std::vector<std::string> values;
    Take(1);
    while (!rest_.starts_with(']')) {
      if (!rest_.starts_with('"') && !rest_.starts_with('\'')) {
        return Error(Code::kInvalid, Text("a list holds strings and ends on its line: ", kValueForms));
      }
      Result<std::string> value = Value();
      if (!value) return Error(value.error());
      values.push_back(std::move(*value));
      if (rest_.starts_with(',')) {
        Take(1);
      } else if (!rest_.starts_with(']')) {
        return Error(Code::kInvalid, Text("a list has commas between its strings: ", kValueForms));
      }
    }
    Take(1);
    return values;
  }

  Result<std::string> Value() {
    if (rest_.starts_with('"')) return Basic();
    if (rest_.starts_with('\'')) return Literal();
    std::int64_t number = 0;
    std::string_view word = Take(std::min(rest_.find_first_of(" \t\r#"), rest_.size()));
    if (word == "true" || word == "false") return std::string(word);
    auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || end != word.data() + word.size()) {
      return Error(Code::kInvalid, Text(Shown(word), " is no value: ", kValueForms));
    }
    return Text(number);
  }

 private:
  // "..." with \" \\ \n \t and no other escape.
  Result<std::string> Basic() {
    std::string value;
    for (std::size_t i = 1; i < rest_.size(); ++i) {
      if (rest_[i] == '"') {
        Take(i + 1);
        return value;
      }
      if (rest_[i] != '\\') {
        value.push_back(rest_[i]);
        continue;
      }
      static constexpr std::string_view kEscapes = "\"\\nt", kMeant = "\"\\\n\t";
      std::size_t which = ++i < rest_.size() ? kEscapes.find(rest_[i]) : std::string_view::npos;
      if (which == std::string_view::npos) {
        return Error(Code::kInvalid, "a backslash in a string goes before \", \\, n or t; or use '...'");
      }
      value.push_back(kMeant[which]);
    }
    return Error(Code::kInvalid, "a string does not end on its line");
  }

  Result<std::string> Literal() {
    std::size_t end = rest_.find('\'', 1);
    if (end == std::string_view::npos) return Error(Code::kInvalid, "a string does not end on its line");
    std::string value(rest_.substr(1, end - 1));
    Take(end + 1);
    return value;
  }

  std::string_view Take(std::size_t count) {
    std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    SkipBlank();
    return taken;
  }
  void SkipBlank() { rest_.remove_prefix(std::min(rest_.find_first_not_of(kBlank), rest_.size())); }

  std::string_view rest_;
};

template <class T>
Status Keep(Result<T> read, T& value) {
  if (!read) return read.error();
  value = std::move(*read);
  return Status();
}

// The tables [[quota]], which are the setting `quota` in other words.
class QuotaTables {
 public:
  // A header begins a table.
  static bool IsHeader(std::string_view text) {
    constexpr std::string_view kHeader = "[[quota]]";
    text.remove_prefix(std::min(text.size(), text.find_first_not_of(kBlank)));
    return text.starts_with(kHeader) && Line(text.substr(kHeader.size())).done();
  }
  bool begun() const { return begun_; }
  Status Begin(NodeOptions& options, const std::string& at) {
    Status status = begun_ ? End(options) : Status();
    if (!begun_) options.quotas.clear();
    begun_ = true;
    at_ = at;
    options.origins.insert_or_assign("quota", at);
    pattern_ = sizes_ = {};
    seen_.clear();
    return status;
  }
  Status Add(std::string_view text) {
    Line line(text);
    if (line.done()) return Status();
    const std::string key(line.Key());
    if (key.empty() || !line.Equals())
      return Status(Code::kInvalid, Text(Shown(text), ": a line is key = value; ", kValueForms));
    Result<std::string> value = line.Value();
    if (!value) return Status(Code::kInvalid, Text(Shown(key), ": ", value.error().message()));
    if (!line.done()) return Status(Code::kInvalid, Text(Shown(key), ": something follows the value"));
    static constexpr std::string_view kKeys[] = {"namespace", "memory", "reserve", "flash", "flash_reserve"};
    if (std::ranges::find(kKeys, key) == std::end(kKeys))
      return Status(Code::kInvalid, UnknownName("key of [[quota]]", key, kKeys));
    if (std::ranges::find(seen_, key) != seen_.end())
      return Status(Code::kInvalid, Text(Shown(key), " is set twice in one [[quota]]; keep one"));
    seen_.push_back(key);
    if (key == "namespace") {
      pattern_ = std::move(*value);
    } else {
      sizes_ += (sizes_.empty() ? "" : ",") + key + "=" + *value;
    }
    return Status();
  }
  Status End(NodeOptions& options) {
    if (!begun_) return Status();
    const Status added = SetNodeOption(options, "quota", "quota", pattern_ + ":" + sizes_);
    return added.ok() ? added : Status(added.code(), Text(at_, ": ", added.message()));
  }

 private:
  bool begun_ = false;
  std::string at_, pattern_, sizes_;
  std::vector<std::string> seen_;
};

// `at` is where the line stands.
Status ApplyLine(NodeOptions& options, std::vector<std::string>& seen, std::string_view text,
                 const std::string& at) {
  Line line(text);
  if (line.done()) return Status();
  std::string key(line.Key());
  if (key.empty() || !line.Equals()) {
    return Status(Code::kInvalid, Text(Shown(text), ": a line is key = value; ", kValueForms));
  }
  const Setting* setting = FindNodeSetting(key);
  const bool list = line.AtArray();
  std::vector<std::string> values;
  Status read = list ? Keep(line.Array(), values) : Keep(line.Value(), values.emplace_back());
  if (!read.ok()) return Status(Code::kInvalid, Text(Shown(key), ": ", read.message()));
  if (!line.done()) return Status(Code::kInvalid, Text(Shown(key), ": something follows the value"));
  if (std::ranges::find(seen, key) != seen.end()) {
    return Status(Code::kInvalid, Text(Shown(key), " is set twice; keep one"));
  }
  seen.push_back(key);
  if (list && setting != nullptr && setting->clear == nullptr) {
    return Status(Code::kInvalid, Text(key, ": is one value, not a list"));
  }
  if (setting != nullptr && setting->clear != nullptr) setting->clear(options);
  for (const std::string& value : values) {
    if (Status status = SetNodeOption(options, key, key, value); !status.ok()) return status;
  }
  if (setting != nullptr) options.origins[key] = at;
  // An empty list of an unknown name is a mistake all the same.
  return setting != nullptr ? Status() : SetNodeOption(options, key, key, "");
}

// As TOML has it, a tab alone. A path would end at a NUL, and a comment take in the lines behind it where
// each ends with a CR alone.
Status CheckCharacters(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const auto found = std::ranges::find_if(
      line, [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; });
  if (found == line.end()) return Status();
  return Status(Code::kInvalid,
                Text("byte ", found - line.begin() + 1, " of the line is the control character ",
                     Hex(static_cast<unsigned char>(*found)), "; take it out",
                     *found == '\r' ? ", and end each line with LF or CR LF" : ""));
}

// By descriptor: a stream throws where the path is a directory, which a mount of a file that was not there
// makes.
Result<std::string> ReadConfigFile(const std::string& path) {
  const auto unreadable = [&](int error) {
    return Error(Code::kInvalid, Text("configuration file ", path, " cannot be read: ", ErrnoText(error),
                                      "; check the path"));
  };
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return unreadable(errno);
  std::string text(kMaxConfigBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return unreadable(errno);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > kMaxConfigBytes)
    return Error(Code::kInvalid, Text("configuration file ", path, " is longer than ", kMaxConfigBytes,
                                      " bytes; check the path"));
  text.resize(size);
  return text;
}

}  // namespace

Status ApplyConfigText(NodeOptions& options, std::string_view text, const std::string& origin) {
  NodeOptions changed = options;  // all or nothing
  std::vector<std::string> seen;  // known keys only, so there are few
  QuotaTables tables;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::size_t end = std::min(text.find('\n'), text.size());
    const std::string at = Text(origin, ":", number);
    const std::string_view line = text.substr(0, end);
    if (Status status = CheckCharacters(line); !status.ok())
      return Status(status.code(), Text(at, ": ", status.message()));
    if (QuotaTables::IsHeader(line)) {
      if (std::ranges::find(seen, "quota") != seen.end())
        return Status(Code::kInvalid, Text(at, ": quota is set twice, as a line and as [[quota]]; keep one"));
      if (Status status = tables.Begin(changed, at); !status.ok()) return status;
    } else if (Status status = tables.begun() ? tables.Add(line) : ApplyLine(changed, seen, line, at);
               !status.ok()) {
      return Status(status.code(), Text(at, ": ", status.message()));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (Status status = tables.End(changed); !status.ok()) return status;
  options = changed;
  return Status();
}

Status ApplyConfigFile(NodeOptions& options, const std::string& path) {
  const Result<std::string> text = ReadConfigFile(path);
  return text ? ApplyConfigText(options, *text, path) : text.error();
}

}  // namespace cistern::node
