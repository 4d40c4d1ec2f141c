// SPDX-License-Identifier: Apache-2.0
#include "planner/tables.h"

#include <algorithm>

#include "base/assert.h"
#include "base/format.h"
#include "base/nearest.h"
#include "planner/data.h"
#include "planner/fields.h"
#include "planner/model_config.h"

namespace cistern::planner {
namespace {

namespace json = boost::json;

constexpr double kGB = 1e9;
constexpr double kMostPrice = 1e6;

bool SameName(std::string_view a, std::string_view b) {
  return a.size() == b.size() && EditDistance(a, b) == 0;
}

template <class Entry>
void Put(std::vector<Entry>& entries, Entry entry) {
  const auto old =
      std::ranges::find_if(entries, [&](const Entry& one) { return SameName(one.name, entry.name); });
  if (old != entries.end()) {
    *old = std::move(entry);
  } else {
    entries.push_back(std::move(entry));
  }
}

template <class Entry>
void ReadOrigin(Fields& fields, Entry& entry) {
  entry.name = fields.String("name");
  entry.source = fields.String("source");
  entry.date = fields.String("date");
}

Status Read(Fields& fields, ModelEntry& entry) {
  ReadOrigin(fields, entry);
  entry.parameters = fields.OptionalNumber("parameters", 1e3, 1e15);
  entry.active_parameters = fields.OptionalNumber("active_parameters", 1e3, 1e15);
  entry.weight_bits = fields.OptionalNumber("weight_bits", 1, 64);
  const json::object* config = fields.Object("config");
  if (!config) fields.Fail("config", "is missing: expected the model's config.json, or kv_layers");
  if (config) entry.config = *config;
  if (!fields.status().ok()) return fields.status();
  const Result<Model> model = ModelFromConfig(entry.config, entry.name, 16);
  return model ? Status() : model.error();
}

Status Read(Fields& fields, Gpu& gpu) {
  ReadOrigin(fields, gpu);
  gpu.memory_bytes = kGB * fields.Number("memory_gb", 1, 1e5);
  gpu.memory_bytes_per_s = kGB * fields.Number("memory_gb_per_s", 1, 1e6);
  gpu.flops = 1e12 * fields.Number("tflops_16bit", 0.1, 1e6);
  return fields.status();
}

Status Read(Fields& fields, Medium& medium) {
  ReadOrigin(fields, medium);
  medium.bytes_per_s = kGB * fields.Number("gb_per_s", 1e-6, 1e6);
  medium.latency_s = 1e-6 * fields.Number("latency_us", 0, 1e8);
  medium.rent_per_gb_month = fields.OptionalNumber("rent_per_gb_month", 0, kMostPrice);
  const json::array* price = fields.Array("price_per_gb");
  if (!price) return fields.status();
  if (price->size() != 2 || !(*price)[0].is_number() || !(*price)[1].is_number()) {
    fields.Fail("price_per_gb", "is not [least, most] in USD a GB");
    return fields.status();
  }
  medium.price_low = (*price)[0].to_number<double>();
  medium.price_high = (*price)[1].to_number<double>();
  if (*medium.price_low < 0 || *medium.price_high > kMostPrice || *medium.price_low > *medium.price_high)
    fields.Fail("price_per_gb", Text("is [", *medium.price_low, ", ", *medium.price_high,
                                     "]: expected two numbers from 0 to 1000000 USD, the smaller first"));
  return fields.status();
}

template <class Entry>
Status AddAll(const json::object& object, std::string_view kind, std::string_view where,
              std::vector<Entry>& entries) {
  Fields file(object, std::string(where));
  const json::array* all = file.Array(kind);
  if (!all) return file.status();
  for (std::size_t i = 0; i < all->size(); ++i) {
    const std::string name = Text(where, ": ", kind, "[", i, "]");
    const json::object* one = (*all)[i].if_object();
    if (!one) return Status(Code::kInvalid, Text(name, " is no object"));
    Fields fields(*one, name);
    Entry entry;
    if (Status status = Read(fields, entry); !status.ok()) return status;
    Put(entries, std::move(entry));
  }
  return Status();
}

template <class Entry>
Result<Entry> Find(const std::vector<Entry>& entries, std::string_view what, std::string_view name) {
  std::vector<std::string_view> known;
  for (const Entry& entry : entries) {
    if (SameName(entry.name, name)) return entry;
    known.push_back(entry.name);
  }
  return Error(Code::kInvalid, UnknownName(what, name, known));
}

}  // namespace

Tables Tables::BuiltIn() {
  Tables tables;
  for (const std::string_view text : {DataModels(), DataGpus(), DataMedia()}) {
    const Status status = tables.Add(text, "built-in data");
    CISTERN_ASSERT(status.ok());
  }
  return tables;
}

Status Tables::Add(std::string_view text, std::string_view where) {
  const Result<json::object> object = ParseObject(text, where);
  if (!object) return object.error();
  for (const auto& [key, value] : *object) {
    constexpr std::string_view kKinds[] = {"models", "gpus", "media"};
    if (std::ranges::find(kKinds, std::string_view(key)) == std::end(kKinds))
      return Status(Code::kInvalid, Text(where, ": ", UnknownName("table", key, kKinds)));
  }
  Tables with = *this;
  Status status = AddAll(*object, "models", where, with.models);
  if (status.ok()) status = AddAll(*object, "gpus", where, with.gpus);
  if (status.ok()) status = AddAll(*object, "media", where, with.media);
  if (status.ok()) *this = std::move(with);
  return status;
}

Result<Model> Tables::FindModel(std::string_view name, double kv_bits) const {
  const Result<ModelEntry> entry = Find(models, "model", name);
  if (!entry) return Error(entry.error());
  Result<Model> model = ModelFromConfig(entry->config, entry->name, kv_bits);
  if (!model) return model;
  model->source = entry->source;
  model->date = entry->date;
  if (entry->parameters) {
    model->parameters = entry->parameters;
    model->active_parameters = entry->parameters;
  }
  if (entry->active_parameters) model->active_parameters = entry->active_parameters;
  if (entry->weight_bits) model->weight_bits = *entry->weight_bits;
  return model;
}

Result<Gpu> Tables::FindGpu(std::string_view name) const { return Find(gpus, "GPU", name); }
Result<Medium> Tables::FindMedium(std::string_view name) const { return Find(media, "medium", name); }

}  // namespace cistern::planner
