// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gpt {

struct adamw_settings {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;  ///< for matrices; vectors (biases, norms) are not decayed
};

/// One update of AdamW over a flat range; all four ranges have the same length. update counts from 1.
/// Each element depends on itself alone, so the result does not depend on how a buffer is cut into ranges.
inline void adamw_update(const adamw_settings& settings, float learning_rate, float weight_decay,
                         std::uint64_t update, std::span<const float> gradient, std::span<float> parameter,
                         std::span<float> m, std::span<float> v) {
  const double t = static_cast<double>(update);
  const float m_scale = static_cast<float>(1 / (1 - std::pow(static_cast<double>(settings.beta1), t)));
  const float v_scale = static_cast<float>(1 / (1 - std::pow(static_cast<double>(settings.beta2), t)));
  for (std::size_t i = 0; i < parameter.size(); ++i) {
    const float g = gradient[i];
    m[i] = settings.beta1 * m[i] + (1 - settings.beta1) * g;
    v[i] = settings.beta2 * v[i] + (1 - settings.beta2) * g * g;
    const float direction = (m[i] * m_scale) / (std::sqrt(v[i] * v_scale) + settings.epsilon);
    parameter[i] -= learning_rate * (direction + weight_decay * parameter[i]);
  }
}

}  // namespace gpt
