// SPDX-License-Identifier: Apache-2.0
#include "admin/trace_text.h"

#include <cstdio>
#include <utility>

#include "admin/json_string.h"
#include "base/format.h"

namespace cistern::admin {
namespace {

// As opentelemetry/proto/trace/v1/trace.proto numbers them.
constexpr int kSpanKindInternal = 1;
constexpr int kSpanKindServer = 2;
constexpr int kStatusError = 2;

std::string Hex16(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
  return text;
}

class Attributes final {
 public:
  explicit Attributes(std::string& out) : out_(out) { out_ += ",\"attributes\":["; }
  ~Attributes() { out_ += ']'; }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  void Add(std::string_view key, std::string_view text) {
    Begin(key, "stringValue");
    AppendJsonString(out_, text);
    out_ += "}}";
  }
  void Add(std::string_view key, std::uint64_t number) {
    Begin(key, "intValue");
    out_ += Text('"', number, "\"}}");
  }

 private:
  void Begin(std::string_view key, std::string_view kind) {
    out_ += std::exchange(any_, true) ? ",{\"key\":" : "{\"key\":";
    AppendJsonString(out_, key);
    out_ += Text(",\"value\":{\"", kind, "\":");
  }
  std::string& out_;
  bool any_ = false;
};

std::uint64_t Microseconds(std::int64_t ns) { return static_cast<std::uint64_t>(ns) / 1'000; }

class Writer final {
 public:
  explicit Writer(std::int64_t unix_ns) : unix_ns_(unix_ns) {}

  void Write(const TracedCall& traced) {
    const SlowCall& call = traced.call;
    const CallText& text = kCallKinds[static_cast<std::size_t>(call.kind)];
    Begin(traced, traced.span, 0, text.name,
          call.kind == CallKind::kFetch ? kSpanKindInternal : kSpanKindServer, call.stations.began(),
          call.ended);
    {
      Attributes attributes(out_);
      attributes.Add(Text("cistern.", text.of), call.count);
      attributes.Add("cistern.code", CodeName(call.code));
      attributes.Add("cistern.longest_at", kStations[static_cast<std::size_t>(call.stations.longest())].name);
      attributes.Add("cistern.core_us", Microseconds(call.stations.at(Station::kCore).ns));
      if (call.session != 0) attributes.Add("cistern.session", call.session);
      if (call.process != 0) attributes.Add("client.process.pid", call.process);
      if (!call.engine.empty()) attributes.Add("cistern.engine", call.engine);
      if (call.namespace_fingerprint != 0)
        attributes.Add("cistern.namespace", Hex16(call.namespace_fingerprint));
    }
    if (call.code != Code::kOk) {
      out_ += Text(",\"status\":{\"code\":", kStatusError, ",\"message\":");
      AppendJsonString(out_, CodeName(call.code));
      out_ += '}';
    }
    out_ += '}';
    std::uint64_t span = traced.span;
    for (std::size_t i = 0; i < kStations.size(); ++i) {
      const CallStations::Stay& stay = call.stations.at(static_cast<Station>(i));
      if (static_cast<Station>(i) == Station::kCore || stay.ns == 0) continue;
      // Not 0, which stands for none.
      if (++span == 0) ++span;
      Begin(traced, span, traced.span, kStations[i].name, kSpanKindInternal, stay.first, stay.last);
      {
        Attributes attributes(out_);
        attributes.Add("cistern.spent_us", Microseconds(stay.ns));
      }
      out_ += '}';
    }
  }

  std::string Take() { return std::move(out_); }

 private:
  void Begin(const TracedCall& traced, std::uint64_t span, std::uint64_t parent, std::string_view name,
             int kind, Instant began, Instant ended) {
    out_ += Text(out_.empty() ? "" : ",", "{\"traceId\":\"", Hex16(traced.trace_high),
                 Hex16(traced.trace_low), "\",\"spanId\":\"", Hex16(span), '"');
    if (parent != 0) out_ += Text(",\"parentSpanId\":\"", Hex16(parent), '"');
    out_ += ",\"name\":";
    AppendJsonString(out_, name);
    out_ += Text(",\"kind\":", kind, ",\"startTimeUnixNano\":\"", began.ns + unix_ns_,
                 "\",\"endTimeUnixNano\":\"", ended.ns + unix_ns_, '"');
  }

  const std::int64_t unix_ns_;
  std::string out_;
};

}  // namespace

std::string TracesText(const TraceResource& resource, std::span<const TracedCall> calls,
                       std::int64_t unix_ns) {
  Writer writer(unix_ns);
  for (const TracedCall& call : calls) writer.Write(call);
  // A resource has nothing before its attributes.
  std::string attributes;
  {
    Attributes all(attributes);
    for (const auto& [key, value] : resource) all.Add(key, value);
  }
  return Text("{\"resourceSpans\":[{\"resource\":{", attributes.substr(1),
              "},\"scopeSpans\":[{\"scope\":{\"name\":\"cistern.slow_calls\"},\"spans\":[", writer.Take(),
              "]}]}]}");
}

}  // namespace cistern::admin
