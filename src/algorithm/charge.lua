-- What a call does to a counter. The twin of charge.rs.
local COUNT, DROP, LOOK, GIVE_BACK = 1, 2, 3, 4

local function charge(spent, kind, cost, full, deepest)
  if kind == LOOK then
    return spent, spent > full
  end
  if kind == GIVE_BACK then
    local left = spent - cost
    if left < 0 then
      left = 0
    end
    return left, left > full
  end
  local charged = spent + cost
  if charged <= full then
    return charged, false
  end
  if kind == DROP then
    return spent, true
  end
  if charged > deepest then
    charged = deepest
  end
  return charged, true
end
