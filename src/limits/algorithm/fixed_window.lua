-- Fixed window: one integer at a key that ends with the window's start, as the reference keeps it. The twin of fixed_window.rs.
local fixed_window = {}

-- Counts are exact below this; a count stays at one less.
local EXACT_MAX = 9007199254740992

-- Returns what is used, whether the stored value is current, and whether there was no key.
function fixed_window.load(key)
  local text = redis.call('GET', key)
  if not text then
    return 0, true, true
  end
  local number = string.match(text, '^-?%d+$') and tonumber(text)
  if not number or math.abs(number) > 2 ^ 63 then
    error({err = 'ERR value is not an integer or out of range'})
  end
  local used = math.min(math.max(number, 0), EXACT_MAX - 1)
  return used, used == number, false
end

function fixed_window.keep(key, used, fresh, now, life)
  if fresh then
    redis.call('SET', key, used, 'EX', life)
  else
    redis.call('SET', key, used, 'KEEPTTL')
  end
end
