// SPDX-License-Identifier: Apache-2.0
#include "etcd/gateway_message.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <charconv>
#include <memory>
#include <utility>

#include "base/format.h"
#include "base/limits.h"
#include "base/nearest.h"

namespace cistern::etcd {
namespace {

namespace json = boost::json;

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<std::int8_t, 256> kDigitValues = [] {
  std::array<std::int8_t, 256> values{};
  values.fill(-1);
  for (std::size_t i = 0; i < kDigits.size(); ++i)
    values[static_cast<unsigned char>(kDigits[i])] = static_cast<std::int8_t>(i);
  return values;
}();

std::string Quoted(std::string_view bytes) { return Text("\"", EncodeBase64(bytes), "\""); }

std::string RangeFields(const KeyRange& keys) {
  std::string text = Text("\"key\":", Quoted(keys.key));
  if (!keys.end.empty()) text += Text(",\"range_end\":", Quoted(keys.end));
  return text;
}

void AppendCompare(std::string& text, const Compare& condition) {
  AppendText(text, Text("{\"key\":", Quoted(condition.key), ",\"result\":\"EQUAL\","));
  switch (condition.what) {
    case Compare::What::kCreateRevision:
      AppendText(text, Text("\"target\":\"CREATE\",\"create_revision\":\"", condition.number, "\"}"));
      break;
    case Compare::What::kModRevision:
      AppendText(text, Text("\"target\":\"MOD\",\"mod_revision\":\"", condition.number, "\"}"));
      break;
    case Compare::What::kValue:
      AppendText(text, Text("\"target\":\"VALUE\",\"value\":", Quoted(condition.value), "}"));
      break;
  }
}

void AppendOperation(std::string& text, const Operation& operation) {
  switch (operation.kind) {
    case Operation::Kind::kPut:
      AppendText(text, Text("{\"request_put\":{\"key\":", Quoted(operation.keys.key), ",\"value\":",
                            Quoted(operation.value), ",\"lease\":\"", operation.lease, "\"}}"));
      break;
    case Operation::Kind::kDelete:
      AppendText(text, Text("{\"request_delete_range\":{", RangeFields(operation.keys), "}}"));
      break;
    case Operation::Kind::kRange:
      AppendText(text, Text("{\"request_range\":{", RangeFields(operation.keys), ",\"limit\":\"",
                            operation.limit, "\"}}"));
      break;
  }
}

template <class Item>
std::string Listed(const std::vector<Item>& items, void (*append)(std::string&, const Item&)) {
  std::string text = "[";
  for (const Item& item : items) {
    if (text.size() > 1) text += ',';
    append(text, item);
  }
  return text += ']';
}

// ----------------------------------------------------------------------------------------------- reading

// What is wrong with a text, by the name of the field.
std::unexpected<Status> Wrong(std::string_view what) {
  return Error(Code::kIoError, Text("its answer is not etcd's: ", what));
}

// Whether whoever reads or copies bytes lets others run now.
class Pace {
 public:
  bool Spent(std::size_t bytes) {
    bytes_ += bytes;
    if (bytes_ < kStepBytes / 2) return false;
    bytes_ = 0;
    return true;
  }

 private:
  std::size_t bytes_ = 0;
};

struct Document {
  const json::object& object() const { return root->get_object(); }
  std::unique_ptr<json::monotonic_resource> memory = std::make_unique<json::monotonic_resource>();
  std::optional<json::value> root;  // in memory's bytes
};

Task<Result<Document>> ParseDocument(Executor&, std::string_view text) {
  constexpr std::size_t kPiece = kStepBytes / 4;
  Document document;
  json::stream_parser parser(document.memory.get());
  boost::system::error_code error;
  while (!text.empty() && !error) {
    const std::size_t piece = std::min(text.size(), kPiece);
    parser.write(text.data(), piece, error);
    text.remove_prefix(piece);
    if (!text.empty()) co_await Yield();
  }
  if (!error) parser.finish(error);
  if (error) co_return Wrong(Text("no JSON (", error.message(), ")"));
  document.root.emplace(parser.release());
  if (!document.root->is_object()) co_return Wrong("no JSON object");
  co_return std::move(document);
}

// The field; null where it is absent, which stands for zero or empty.
const json::value* Field(const json::object& object, std::string_view name) {
  const json::value* field = object.if_contains(name);
  return field == nullptr || field->is_null() ? nullptr : field;
}

template <class Number>
bool ReadNumber(const json::object& object, std::string_view name, Number& number) {
  const json::value* field = Field(object, name);
  number = 0;
  if (field == nullptr) return true;
  if (const json::string* text = field->if_string()) {
    const char* const end = text->data() + text->size();
    const auto read = std::from_chars(text->data(), end, number);
    return read.ec == std::errc() && read.ptr == end && !text->empty();
  }
  boost::system::error_code error;
  number = field->to_number<Number>(error);
  return !error && !field->is_double();
}

bool ReadBool(const json::object& object, std::string_view name, bool& value) {
  const json::value* field = Field(object, name);
  value = field != nullptr && field->is_bool() && field->get_bool();
  return field == nullptr || field->is_bool();
}

bool ReadText(const json::object& object, std::string_view name, std::string& text) {
  const json::value* field = Field(object, name);
  text.clear();
  if (field == nullptr) return true;
  if (!field->is_string()) return false;
  text = std::string_view(field->get_string());
  return true;
}

bool ReadBytes(const json::object& object, std::string_view name, std::string& bytes) {
  const json::value* field = Field(object, name);
  bytes.clear();
  if (field == nullptr) return true;
  if (!field->is_string()) return false;
  std::optional<std::string> decoded = DecodeBase64(field->get_string());
  if (decoded) bytes = std::move(*decoded);
  return decoded.has_value();
}

// False where it is there and no object.
bool ReadObject(const json::object& object, std::string_view name, const json::object*& inner) {
  const json::value* field = Field(object, name);
  inner = field == nullptr ? nullptr : field->if_object();
  return field == nullptr || inner != nullptr;
}
bool ReadArray(const json::object& object, std::string_view name, const json::array*& array) {
  static const json::array kNone;
  const json::value* field = Field(object, name);
  array = field == nullptr ? &kNone : field->if_array();
  return array != nullptr;
}

bool ReadHeader(const json::object& object, Header& header) {
  const json::object* inner = nullptr;
  return ReadObject(object, "header", inner) && inner != nullptr &&
         ReadNumber(*inner, "cluster_id", header.cluster_id) && header.cluster_id != 0 &&
         ReadNumber(*inner, "revision", header.revision) && header.revision >= 1;
}

bool ReadKeyValue(const json::object& object, KeyValue& key) {
  return ReadBytes(object, "key", key.key) && !key.key.empty() && ReadBytes(object, "value", key.value) &&
         ReadNumber(object, "create_revision", key.create_revision) &&
         ReadNumber(object, "mod_revision", key.mod_revision) && ReadNumber(object, "lease", key.lease) &&
         key.mod_revision >= 1 && key.create_revision >= 0 && key.create_revision <= key.mod_revision;
}

// Without its header.
Task<Result<RangeAnswer>> ReadRangeFields(Executor&, const json::object& object) {
  RangeAnswer answer;
  const json::array* keys = nullptr;
  if (!ReadArray(object, "kvs", keys) || !ReadBool(object, "more", answer.more))
    co_return Wrong("kvs or more of a range");
  Pace pace;
  for (const json::value& value : *keys) {
    const json::object* fields = value.if_object();
    KeyValue key;
    if (fields == nullptr || !ReadKeyValue(*fields, key) || key.create_revision == 0)
      co_return Wrong(Text("key ", answer.keys.size(), " of a range"));
    if (!answer.keys.empty() && answer.keys.back().key >= key.key)
      co_return Wrong("the keys of a range are not in order");
    const std::size_t bytes = key.key.size() + key.value.size() + Limits::kEventBytes;
    answer.keys.push_back(std::move(key));
    if (pace.Spent(bytes)) co_await Yield();
  }
  co_return std::move(answer);
}

std::optional<GatewayError> ErrorOf(const json::object& object) {
  GatewayError error;
  if (!ReadNumber(object, object.contains("grpc_code") ? "grpc_code" : "code", error.code) || error.code == 0)
    return std::nullopt;
  if (!ReadText(object, object.contains("message") ? "message" : "error", error.message)) return std::nullopt;
  return error;
}

Result<json::value> ParseShort(std::string_view text) {
  if (text.size() > kStepBytes) return Wrong(Text(text.size(), " bytes where few are expected"));
  boost::system::error_code error;
  json::value value = json::parse(text, error);
  if (error) return Wrong(Text("no JSON (", error.message(), "): ", Shown(text)));
  if (!value.is_object()) return Wrong(Text("no JSON object: ", Shown(text)));
  return value;
}

}  // namespace

std::string EncodeBase64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t count = std::min<std::size_t>(bytes.size() - at, 3);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (std::size_t i = 0; i < 4; ++i) text.push_back(i <= count ? kDigits[bits >> (18 - 6 * i) & 63] : '=');
  }
  return text;
}

std::optional<std::string> DecodeBase64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  text.remove_suffix(padding);
  std::string bytes;
  bytes.reserve(text.size() * 3 / 4);
  std::uint32_t bits = 0;
  unsigned have = 0;
  for (const char digit : text) {
    const std::int8_t value = kDigitValues[static_cast<unsigned char>(digit)];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    have += 6;
    if (have < 8) continue;
    have -= 8;
    bytes.push_back(static_cast<char>(bits >> have));
  }
  if ((bits & ((1u << have) - 1)) != 0) return std::nullopt;  // another text would mean the same bytes
  return bytes;
}

std::string RangeQuestion(const RangeRequest& request) {
  return Text("{", RangeFields(request.keys), ",\"revision\":\"", request.revision, "\",\"limit\":\"",
              request.limit, "\"}");
}

std::string CommitQuestion(const Transaction& transaction) {
  return Text("{\"compare\":", Listed(transaction.conditions, AppendCompare),
              ",\"success\":", Listed(transaction.then, AppendOperation),
              ",\"failure\":", Listed(transaction.otherwise, AppendOperation), "}");
}

std::string GrantQuestion(std::int64_t ttl_s) { return Text("{\"TTL\":\"", ttl_s, "\"}"); }
std::string LeaseQuestion(std::int64_t lease) { return Text("{\"ID\":\"", lease, "\"}"); }
std::string CompactQuestion(std::int64_t revision) { return Text("{\"revision\":\"", revision, "\"}"); }

std::string WatchQuestion(const KeyRange& keys, std::int64_t revision) {
  return Text("{\"create_request\":{", RangeFields(keys), ",\"start_revision\":\"", revision,
              "\",\"fragment\":true}}");
}

std::string LoginQuestion(std::string_view user, std::string_view password) {
  return json::serialize(json::object{{"name", user}, {"password", password}});
}

Task<Result<RangeAnswer>> ReadRangeAnswer(Executor& executor, std::string_view text) {
  auto document = co_await ParseDocument(executor, text);
  if (!document) co_return Error(std::move(document.error()));
  const json::object& object = document->object();
  auto answer = co_await ReadRangeFields(executor, object);
  if (answer && !ReadHeader(object, answer->header)) co_return Wrong("the header of a range");
  co_return std::move(answer);
}

Task<Result<TransactionAnswer>> ReadCommitAnswer(Executor& executor, std::string_view text) {
  auto document = co_await ParseDocument(executor, text);
  if (!document) co_return Error(std::move(document.error()));
  const json::object& object = document->object();
  TransactionAnswer answer;
  const json::array* responses = nullptr;
  if (!ReadHeader(object, answer.header) || !ReadBool(object, "succeeded", answer.succeeded) ||
      !ReadArray(object, "responses", responses))
    co_return Wrong("header, succeeded or responses of a transaction");
  for (const json::value& response : *responses) {
    const json::object* fields = response.if_object();
    const json::object* range = nullptr;
    if (fields == nullptr || !ReadObject(*fields, "response_range", range))
      co_return Wrong("the responses of a transaction");
    if (range == nullptr) continue;
    auto read = co_await ReadRangeFields(executor, *range);
    if (!read) co_return Error(std::move(read.error()));
    read->header = answer.header;
    answer.ranges.push_back(std::move(*read));
  }
  co_return std::move(answer);
}

Task<Result<LeaseAnswer>> ReadLeaseAnswer(Executor& executor, std::string_view text) {
  text = text.substr(0, text.find('\n'));
  auto document = co_await ParseDocument(executor, text);
  if (!document) co_return Error(std::move(document.error()));
  const json::object* object = &document->object();
  if (object->contains("result")) {
    if (!ReadObject(*object, "result", object) || object == nullptr)
      co_return Wrong("the result of a renewal");
  }
  LeaseAnswer answer;
  if (!ReadHeader(*object, answer.header) || !ReadNumber(*object, "ID", answer.id) || answer.id == 0 ||
      !ReadNumber(*object, "TTL", answer.ttl_s) || answer.ttl_s < 0)
    co_return Wrong("header, ID or TTL of a lease");
  co_return answer;
}

Task<Result<WatchMessage>> ReadWatchMessage(Executor& executor, std::string_view line) {
  auto document = co_await ParseDocument(executor, line);
  if (!document) co_return Error(std::move(document.error()));
  const json::object& object = document->object();
  WatchMessage message;
  const json::object* error = nullptr;
  const json::object* result = nullptr;
  if (!ReadObject(object, "error", error) || !ReadObject(object, "result", result) ||
      (error == nullptr && result == nullptr))
    co_return Wrong("a watch's message without result and error");
  if (error != nullptr) {
    message.error = ErrorOf(*error);
    if (!message.error) co_return Wrong("the error of a watch");
    co_return std::move(message);
  }
  const json::array* events = nullptr;
  if (!ReadBool(*result, "canceled", message.cancelled) || !ReadBool(*result, "fragment", message.goes_on) ||
      !ReadText(*result, "cancel_reason", message.reason) || !ReadArray(*result, "events", events) ||
      !ReadNumber(*result, "compact_revision", message.compact_revision) || message.compact_revision < 0)
    co_return Wrong("the result of a watch");
  Pace pace;
  for (const json::value& value : *events) {
    WatchEvent event;
    std::string type;
    const json::object* fields = value.if_object();
    const json::object* key = nullptr;
    if (fields == nullptr || !ReadText(*fields, "type", type) || !ReadObject(*fields, "kv", key) ||
        key == nullptr || !ReadKeyValue(*key, event.key))
      co_return Wrong(Text("event ", message.events.size(), " of a watch"));
    if (type == "DELETE") {
      event.kind = WatchEvent::Kind::kDelete;
    } else if ((!type.empty() && type != "PUT") || event.key.create_revision == 0) {
      co_return Wrong(Text("event ", message.events.size(), " of a watch, of type ", Shown(type)));
    }
    if (!message.events.empty() && message.events.back().key.mod_revision > event.key.mod_revision)
      co_return Wrong("the events of a watch are not in order");
    const std::size_t bytes = event.key.key.size() + event.key.value.size() + Limits::kEventBytes;
    message.events.push_back(std::move(event));
    if (pace.Spent(bytes)) co_await Yield();
  }
  co_return std::move(message);
}

std::optional<GatewayError> ReadGatewayError(std::string_view text) {
  text = text.substr(0, text.find('\n'));
  const auto value = ParseShort(text);
  if (!value) return std::nullopt;
  const json::object* object = &value->get_object();
  // In a stream the error is an object, else it is the message.
  if (const json::value* inner = object->if_contains("error"); inner != nullptr && inner->is_object())
    object = &inner->get_object();
  return ErrorOf(*object);
}

Result<std::string> ReadVersion(std::string_view text) {
  const auto value = ParseShort(text);
  if (!value) return Error(value.error());
  std::string version;
  if (!ReadText(value->get_object(), "etcdserver", version) || version.empty())
    return Wrong(Text("no version of etcd: ", Shown(text)));
  return version;
}

Result<std::string> ReadToken(std::string_view text) {
  const auto value = ParseShort(text);
  if (!value)
    return Error(Code::kIoError, "its answer to the login is not etcd's");  // nothing of it is shown
  std::string token;
  const bool read = ReadText(value->get_object(), "token", token) && !token.empty();
  if (!read || std::ranges::any_of(token, [](unsigned char c) { return c <= 0x20 || c >= 0x7f; }))
    return Error(Code::kIoError, "its answer to the login has no token");
  return token;
}

}  // namespace cistern::etcd
