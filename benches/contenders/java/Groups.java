package contenders;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** A drain thread's batch, grouped by class while it is taken; the lists keep their room from batch to batch. */
final class Groups {
    private static final class Group {
        final Handler handler;
        final List<Metric> batch = new ArrayList<>();

        Group(Handler handler) {
            this.handler = handler;
        }
    }

    private final Map<Class<?>, Group> groups = new HashMap<>();
    private final List<Group> touched = new ArrayList<>();

    Groups(Metric[] metrics, Tally tally) {
        for (Metric metric : metrics) {
            groups.put(metric.getClass(), new Group(tally.handler(metric.kind)));
        }
    }

    void add(Metric metric) {
        Group group = groups.get(metric.getClass());
        if (group.batch.isEmpty()) {
            touched.add(group);
        }
        group.batch.add(metric);
    }

    /** Calls each class's handler; returns whether there was anything. */
    boolean dispatch() {
        boolean any = !touched.isEmpty();
        for (Group group : touched) {
            group.handler.consume(group.batch);
            group.batch.clear();
        }
        touched.clear();
        return any;
    }
}
