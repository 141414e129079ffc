package contenders;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** A drain thread's batch, grouped by class as it is taken. Lists keep their capacity. */
final class BatchByType {
    private static final class Group {
        final Handler handler;
        final List<Metric> batch = new ArrayList<>();

        Group(Handler handler) {
            this.handler = handler;
        }
    }

    private final Map<Class<?>, Group> groups = new HashMap<>();
    private final List<Group> touched = new ArrayList<>();

    BatchByType(Metric[] metrics, Tally tally) {
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

    /** Calls each class's handler. Returns false if the batch was empty. */
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
